from django.apps import AppConfig


class ScalingConfig(AppConfig):
    name = "controlplane.scaling"

    def ready(self) -> None:
        """Add a pool that grows to the demo fleet, which an app below makes."""
        from controlplane.routing import demo
        from controlplane.scaling.demo import ensure_growing_pool

        demo.MORE["scaling"] = ensure_growing_pool
