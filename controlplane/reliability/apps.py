from django.apps import AppConfig


class ReliabilityConfig(AppConfig):
    name = "controlplane.reliability"

    def ready(self) -> None:
        """Add what a pool promises to the demo fleet, which an app below makes."""
        from controlplane.reliability.demo import ensure_slo
        from controlplane.routing import demo

        demo.MORE["reliability"] = ensure_slo
