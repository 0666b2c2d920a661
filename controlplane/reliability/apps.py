from django.apps import AppConfig


class ReliabilityConfig(AppConfig):
    name = "controlplane.reliability"

    def ready(self) -> None:
        """Lend apps below what only this one knows: the demo's promises, pools' alerts."""
        from controlplane.fleet import troubles
        from controlplane.reliability import selectors
        from controlplane.reliability.demo import ensure_slo
        from controlplane.routing import demo

        demo.MORE["reliability"] = ensure_slo
        troubles.register(selectors.troubles)
