from django.apps import AppConfig


class DeclarativeConfig(AppConfig):
    name = "controlplane.declarative"
