"""The OpenAPI schema and its page, served from our own origin."""

from __future__ import annotations

from csp.decorators import csp_replace
from django.utils.decorators import method_decorator
from drf_spectacular.views import SpectacularSwaggerSplitView


@method_decorator(csp_replace({"style-src": ["'self'", "'unsafe-inline'"]}), name="dispatch")
class DocsView(SpectacularSwaggerSplitView):
    """The documentation page.

    Swagger UI sets inline styles; scripts stay as strict as everywhere. The site's hash of the
    empty style is replaced, since beside a hash browsers ignore 'unsafe-inline'.
    """
