"""REST: the link that sets a password once, for who was invited."""

from __future__ import annotations

from rest_framework import serializers


class InvitationField(serializers.CharField):
    """A path that is shown in one answer only."""

    def __init__(self) -> None:
        super().__init__(
            allow_null=True,
            help_text="Path of the page that sets their password, once, within three days. "
            "Null: they have one, or this is a dry run or a repeated answer.",
        )
