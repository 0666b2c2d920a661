"""The ASGI entry point: `uvicorn controlplane.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

from controlplane.body_limit import BodyLimit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
application = BodyLimit(get_asgi_application())
