"""The configuration as a file to keep: one answer for the console and the API."""

from __future__ import annotations

from django.http import HttpResponse

from controlplane.declarative import document, services

MEDIA_TYPE = "application/yaml"


def file_answer() -> HttpResponse:
    """Answer with the configuration as a file to keep."""
    text = services.export_text()
    answer = HttpResponse(text, content_type=f"{MEDIA_TYPE}; charset=utf-8")
    answer["ETag"] = f'"{document.digest(text)}"'
    answer["Content-Disposition"] = 'attachment; filename="signalbox.yaml"'
    answer["Cache-Control"] = "no-store"
    return answer
