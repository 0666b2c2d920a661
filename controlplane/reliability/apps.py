from django.apps import AppConfig


class ReliabilityConfig(AppConfig):
    name = "controlplane.reliability"
