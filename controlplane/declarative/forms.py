"""The form of the configuration page."""

from __future__ import annotations

from typing import Any

from django import forms

from controlplane.declarative.document import LIMIT_BYTES


class ApplyForm(forms.Form):
    """A file, pasted or chosen."""

    upload = forms.FileField(required=False, label="File")
    yaml = forms.CharField(
        required=False,
        label="or its text",
        strip=False,
        max_length=LIMIT_BYTES,
        widget=forms.Textarea({"rows": 18, "spellcheck": "false", "class": "mono"}),
    )
    remove = forms.BooleanField(
        required=False,
        label="Remove what a section of the file does not list",
        help_text="Without this, objects that the file does not name are kept.",
    )

    def clean(self) -> dict[str, Any]:
        """Take the text from the file if one was chosen."""
        given = super().clean() or {}
        upload = given.get("upload")
        if upload is not None:
            given["yaml"] = self._text_of(upload)
        if not self.errors and not (given.get("yaml") or "").strip():
            self.add_error("yaml", "Choose a file, or paste its text.")
        return given

    def _text_of(self, upload: Any) -> str:
        if upload.size > LIMIT_BYTES:
            self.add_error("upload", f"It is larger than {LIMIT_BYTES // 1024 // 1024} MiB.")
            return ""
        try:
            return str(upload.read().decode())
        except UnicodeDecodeError:
            self.add_error("upload", "It is no text in UTF-8.")
            return ""
