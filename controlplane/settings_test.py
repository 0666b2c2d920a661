"""Settings of the tests: fast and offline; `DATABASE_URL` switches to PostgreSQL."""

import os
import tempfile
from pathlib import Path

_scratch = Path(tempfile.gettempdir()) / f"signalbox-tests-{os.getuid()}"
_scratch.mkdir(mode=0o700, exist_ok=True)
(_scratch / "static").mkdir(exist_ok=True)  # whitenoise warns where nothing was collected
os.environ.setdefault("SIGNALBOX_VAR", str(_scratch))
os.environ.setdefault("SIGNALBOX_SECRET_KEY", "only-for-tests-" + "x" * 50)

from controlplane.settings import *  # noqa: E402, F403  (the tests differ from it in what follows)
from controlplane.settings import SQLITE  # noqa: E402

if "DATABASE_URL" not in os.environ:
    DATABASES = {
        "default": {
            **SQLITE,
            "NAME": str(_scratch / "test.sqlite3"),
            "TEST": {"NAME": str(_scratch / f"test-{os.getpid()}.sqlite3")},
        }
    }
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CELERY_TASK_ALWAYS_EAGER = False
CELERY_BROKER_URL = "memory://"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
REDIS_URL = "redis://127.0.0.1:1/0"  # nothing listens there; tests of Redis start their own
AXES_ENABLED = False
