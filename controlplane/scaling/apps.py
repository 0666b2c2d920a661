from django.apps import AppConfig


class ScalingConfig(AppConfig):
    name = "controlplane.scaling"

    def ready(self) -> None:
        """Add a pool that grows to the demo fleet, and tell which pools cannot scale."""
        from controlplane.fleet import troubles
        from controlplane.routing import demo
        from controlplane.scaling import selectors
        from controlplane.scaling.demo import ensure_growing_pool

        demo.MORE["scaling"] = ensure_growing_pool
        troubles.register(selectors.troubles)
