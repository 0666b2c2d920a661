"""The one settings file: every knob comes from the environment; each default works on a laptop."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("SIGNALBOX_VAR", BASE_DIR / "var"))


def _flag(name: str, *, default: bool) -> bool:
    return os.environ.get(name, str(int(default))).lower() in {"1", "true", "yes", "on"}


def _secret(name: str, file_name: str) -> str:
    """Take a secret from the environment, else from the file that the first start wrote."""
    path = VAR_DIR / "secrets" / file_name
    return os.environ.get(name) or (path.read_text().strip() if path.exists() else "")


DEBUG = _flag("SIGNALBOX_DEBUG", default=False)
SECRET_KEY = _secret("SIGNALBOX_SECRET_KEY", "django-secret-key")
ALLOWED_HOSTS = os.environ.get("SIGNALBOX_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")
CSRF_FAILURE_VIEW = "controlplane.failures.stale_form"
CSRF_TRUSTED_ORIGINS = [o for o in os.environ.get("SIGNALBOX_TRUSTED_ORIGINS", "").split(",") if o]

# TLS ends in front of us where there is any; on loopback there is none.
BEHIND_TLS = _flag("SIGNALBOX_BEHIND_TLS", default=False)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_TLS else None
SECURE_SSL_REDIRECT = BEHIND_TLS
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BEHIND_TLS
SECURE_HSTS_SECONDS = 31_536_000 if BEHIND_TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = BEHIND_TLS
SESSION_COOKIE_AGE = 12 * 3600

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "axes",
    "csp",
    "django_filters",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "controlplane.audit",
    "controlplane.tenants",
    "controlplane.catalog",
    "controlplane.fleet",
    "controlplane.routing",
    "controlplane.usage",
    "controlplane.planning",
    "controlplane.reliability",
    "controlplane.declarative",
    "controlplane.rollouts",
    "controlplane.scaling",
    "controlplane.telemetry",
    "controlplane.api",
    "controlplane.overview",
    "controlplane.console",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.tenants.middleware.role_middleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.console.context.console",
            ],
        },
    },
]

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    },
}


def database_from_url(url: str) -> dict[str, object]:
    """Turn `postgresql://user:password@host:port/name` or `sqlite:///path` into Django's form.

    Raises:
        ValueError: for another scheme; the message names the two that work.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {**SQLITE, "NAME": parts.path}
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ValueError(
            f"DATABASE_URL has the scheme {parts.scheme!r}: use postgresql://… or sqlite:///…"
        )
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 8, "timeout": 10}},
        "CONN_HEALTH_CHECKS": True,
    }


DATABASES = {
    "default": database_from_url(
        os.environ.get("DATABASE_URL", f"sqlite:///{VAR_DIR / 'signalbox.sqlite3'}")
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:8379/0")
PROMETHEUS_URL = os.environ.get("PROMETHEUS_URL", "")

CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CONCURRENCY = int(os.environ.get("SIGNALBOX_WORKER_CONCURRENCY", "2"))
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Tasks end within 40 s, so one whose worker died comes back after 60. The broker may be frozen or
# gone behind an open connection: worker and beat notice within seconds and connect anew.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 60,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 5,
}
ROLLOUT_INTERVAL_S = float(os.environ.get("SIGNALBOX_ROLLOUT_INTERVAL_S", "10"))
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR_DIR / "celerybeat-schedule")
# Seconds; ARCHITECTURE: publish sweep 5, reconcile replicas 5.
CELERY_BEAT_SCHEDULE = {
    "publish-sweep": {"task": "routing.sweep", "schedule": 5.0, "options": {"expires": 5}},
    "reconcile-replicas": {"task": "routing.reconcile", "schedule": 5.0, "options": {"expires": 5}},
    "rollouts": {
        "task": "rollouts.evaluate",
        "schedule": ROLLOUT_INTERVAL_S,
        "options": {"expires": ROLLOUT_INTERVAL_S},
    },
    "adapters": {"task": "fleet.adapters", "schedule": 5.0, "options": {"expires": 5}},
    "retention": {"task": "audit.retention", "schedule": 3600.0, "options": {"expires": 3600}},
    "shadow-pair-retention": {
        "task": "rollouts.forget_pairs",
        "schedule": 600.0,
        "options": {"expires": 600},
    },
    "request-retention": {
        "task": "usage.forget_requests",
        "schedule": 600.0,
        "options": {"expires": 600},
    },
    "book-budgets": {
        "task": "reliability.book_budgets",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "scaling": {"task": "scaling.run", "schedule": 5.0, "options": {"expires": 5}},
    "scaling-retention": {
        "task": "scaling.forget",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "judge-alerts": {
        "task": "reliability.judge_alerts",
        "schedule": 10.0,
        "options": {"expires": 10},
    },
    "deliver-messages": {
        "task": "reliability.deliver",
        "schedule": 10.0,
        "options": {"expires": 10},
    },
    "roll-up": {"task": "telemetry.roll_up", "schedule": 60.0, "options": {"expires": 60}},
    "roll-up-retention": {
        "task": "telemetry.forget",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
}

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_TEMPLATE = "registration/locked.html"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = VAR_DIR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        # The hash is that of the empty string: Plotly sets empty style elements, nothing more.
        "style-src": ["'self'", "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'self'"],
        "form-action": ["'self'"],
        "object-src": ["'none'"],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.authentication.ApiTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.api.permissions.RolePermission"],
    "DEFAULT_PAGINATION_CLASS": "controlplane.api.pagination.PageNumber",
    "DEFAULT_FILTER_BACKENDS": [
        "django_filters.rest_framework.DjangoFilterBackend",
        "controlplane.rest.ordering.Ordering",
    ],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "EXCEPTION_HANDLER": "controlplane.api.errors.handle",
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS: the schema says what there is
    "STRICT_JSON": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Signalbox control plane",
    "DESCRIPTION": "Pools, replicas, models, tenants and routing tables of an LLM inference fleet.",
    "VERSION": "v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # Closed, all nouns fit a page or two; open, the page draws only those near what is in view.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "docExpansion": "none", "filter": True},
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "controlplane.api.schema.say_what_all_share",
    ],
    "ENUM_NAME_OVERRIDES": {
        "AlertStateEnum": "controlplane.reliability.models.ALERT_STATES",
        "MessageOutcomeEnum": "controlplane.reliability.models.WebhookDelivery.Outcome",
        "MaintenanceKindEnum": "controlplane.reliability.models.MaintenanceWindow.Kind",
        "DtypeEnum": "controlplane.catalog.models.Dtype",
        "ModelKindEnum": "controlplane.catalog.models.Kind",
        "RoleEnum": "controlplane.tenants.models.Role",
        "StateEnum": "controlplane.fleet.models.STATES",
        "ExecutorEnum": "controlplane.fleet.models.Replica.Executor",
        "PairOutcomeEnum": "controlplane.rollouts.api_pairs.OUTCOMES",
        "ScalingExecutorEnum": "controlplane.scaling.api.EXECUTORS",
        "TenantRoleEnum": "controlplane.tenants.models.TenantRole",
    },
}

# Routing: pushes to agents and their signatures.
SIGNING_KEY_FILE = Path(
    os.environ.get("SIGNALBOX_SIGNING_KEY_FILE", VAR_DIR / "secrets" / "signing-key.pem")
)
PUSH_TIMEOUT_S = 2.0
PUBLISH_DEBOUNCE_S = 0.05
AGENT_SILENT_AFTER_S = 10.0
REDIS_TIMEOUT_S = 0.2
REQUEST_RETENTION_DAYS = int(os.environ.get("SIGNALBOX_REQUEST_RETENTION_DAYS", "7"))
REQUEST_ROWS_LIMIT = int(os.environ.get("SIGNALBOX_REQUEST_ROWS", "200000"))
SHADOW_RETENTION_DAYS = int(os.environ.get("SIGNALBOX_SHADOW_RETENTION_DAYS", "7"))
SHADOW_ROWS_LIMIT = int(os.environ.get("SIGNALBOX_SHADOW_ROWS", "50000"))
MINUTE_ROLLUP_HOURS = int(os.environ.get("SIGNALBOX_MINUTE_ROLLUP_HOURS", "48"))
HOUR_ROLLUP_DAYS = int(os.environ.get("SIGNALBOX_HOUR_ROLLUP_DAYS", "396"))  # 13 months
SCALING_RETENTION_DAYS = int(os.environ.get("SIGNALBOX_SCALING_RETENTION_DAYS", "30"))
AUDIT_RETENTION_DAYS = int(os.environ.get("SIGNALBOX_AUDIT_RETENTION_DAYS", "400"))
# LoRA adapters: where uploads are kept (hosts of one control plane share it), and how much.
ADAPTER_DIR = Path(os.environ.get("SIGNALBOX_ADAPTER_DIR", VAR_DIR / "adapters"))
ADAPTER_LIMIT_BYTES = int(os.environ.get("SIGNALBOX_ADAPTER_BYTES", "2000000000"))
ADAPTER_TENANT_BYTES = int(os.environ.get("SIGNALBOX_ADAPTER_TENANT_BYTES", "20000000000"))
ADAPTER_TENANT_COUNT = int(os.environ.get("SIGNALBOX_ADAPTER_TENANT_COUNT", "100"))
# Files of an upload go to disk at once, whatever their size.
FILE_UPLOAD_HANDLERS = ["controlplane.upload_files.FileHandler"]
LOG_LEVEL = os.environ.get("SIGNALBOX_LOG_LEVEL", "INFO")
LOGGING_CONFIG = "controlplane.log.configure"
LOGGING = {"level": LOG_LEVEL}
SILENCED_SYSTEM_CHECKS: list[str] = []
