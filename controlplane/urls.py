"""The route table."""

from django.urls import path

urlpatterns: list = [path("", lambda request: None)]
