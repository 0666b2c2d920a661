from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "controlplane.routing"

    def ready(self) -> None:
        """Record the runs of all loops, and mark epochs on charts."""
        from controlplane.routing import beat, selectors
        from controlplane.telemetry import marks

        beat.connect()
        marks.register(selectors.epoch_marks)
