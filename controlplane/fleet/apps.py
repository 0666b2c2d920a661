from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "controlplane.fleet"

    def ready(self) -> None:
        """Tell roll-ups what belongs to what."""
        from controlplane.fleet import selectors
        from controlplane.telemetry import topology

        topology.register(selectors.topology)
