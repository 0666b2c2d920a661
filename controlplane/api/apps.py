from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "controlplane.api"

    def ready(self) -> None:
        """Lend the writes of all apps what only the top layer knows."""
        from controlplane.api.shell import ApiShell
        from controlplane.rest.views import install

        install(ApiShell())
