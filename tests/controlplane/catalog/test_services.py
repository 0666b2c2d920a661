"""Models and versions: names, uniqueness, what is in use stays."""

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.catalog import selectors, services
from controlplane.catalog.models import Model, ModelVersion
from controlplane.domain.errors import Conflict, Invalid, NotFound
from tests.controlplane import calling
from tests.controlplane.calling import WHY

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", ["org/m-7b:canary", "a", "Qwen2.5-7B", "x" * 200, "a+b"])
def test_names_clients_really_send_are_allowed(name):
    assert services.create_model(name=name, **WHY).name == name


@pytest.mark.parametrize(
    "name", ["", " a", "a b", "a\n", "/a", "-a", "x" * 201, "a\x00", "<b>x</b>"]
)
def test_names_that_are_none_are_refused_by_field(name):
    with pytest.raises(Invalid) as caught:
        services.create_model(name=name, **WHY)
    assert caught.value.field == "name"


def test_a_name_means_one_model_aliases_included():
    services.create_model(name="chat", aliases=["default"], **WHY)
    for clash in ("chat", "default"):
        with pytest.raises(Conflict):
            services.create_model(name=clash, **WHY)
    services.create_model(name="other", **WHY)
    with pytest.raises(Conflict) as caught:
        services.update_model(name="other", aliases=["chat"], **WHY)
    assert caught.value.field == "aliases"


@pytest.mark.parametrize("aliases", ["x", ["a", "a"], ["a b"], [1], [""]])
def test_aliases_are_a_list_of_different_names(aliases):
    with pytest.raises(Invalid) as caught:
        services.create_model(name="chat", aliases=aliases, **WHY)
    assert caught.value.field == "aliases"


def test_a_model_may_keep_its_own_aliases_in_an_edit():
    services.create_model(name="chat", aliases=["default"], **WHY)
    made = services.update_model(name="chat", aliases=["default", "new"], **WHY)
    assert made.aliases == ["default", "new"]


def test_a_stale_edit_of_a_model_is_refused():
    services.create_model(name="chat", **WHY)
    services.update_model(name="chat", description="a", expected_version=1, **WHY)
    with pytest.raises(Conflict) as caught:
        services.update_model(name="chat", description="b", expected_version=1, **WHY)
    assert caught.value.code == "stale_version"


def test_a_version_is_unique_within_its_model_only():
    calling.model("chat", "v1")
    calling.model("other", "v1")
    with pytest.raises(Conflict) as caught:
        services.create_version(model="chat", name="v1", **WHY)
    assert caught.value.field == "name"


@pytest.mark.parametrize(
    ("field", "value"),
    [("engine", "magic"), ("dtype", "int3"), ("engine_arguments", ["--x"]), ("layers", -1)],
)
def test_facts_of_a_version_are_checked_by_name(field, value):
    services.create_model(name="chat", **WHY)
    with pytest.raises(Invalid) as caught:
        services.create_version(model="chat", name="v1", **{field: value}, **WHY)
    assert caught.value.field == field


def test_what_pools_serve_is_neither_retired_nor_deleted():
    calling.model()
    calling.pool("chat-a")
    version = ModelVersion.objects.get()
    with pytest.raises(Conflict, match="chat-a"):
        services.retire_version(version_id=version.pk, **WHY)
    with pytest.raises(Conflict, match="chat-a"):
        services.delete_model(name="chat", **WHY)


def test_retiring_twice_is_one_change():
    calling.model()
    version = ModelVersion.objects.get()
    for _ in range(2):
        assert services.retire_version(version_id=version.pk, **WHY).retired_at
    assert AuditEvent.objects.filter(verb="model-version.retire").count() == 1


def test_deleting_a_model_takes_its_unused_versions_along():
    calling.model()
    services.delete_model(name="chat", **WHY)
    assert not ModelVersion.objects.exists()
    with pytest.raises(NotFound):
        selectors.model("chat")


def test_models_say_how_many_versions_and_pools_they_have():
    calling.model()
    services.create_version(model="chat", name="v2", **WHY)
    calling.pool("chat-a")
    calling.pool("chat-b")
    row = selectors.model("chat")
    assert (row.version_count, row.pool_count) == (2, 2)
    assert selectors.pools_using("chat") == ["chat-a", "chat-b"]


def test_a_failed_change_leaves_nothing_behind():
    services.create_model(name="chat", **WHY)
    events = AuditEvent.objects.count()
    with pytest.raises(Conflict):
        services.create_model(name="chat", **WHY)
    assert (Model.objects.count(), AuditEvent.objects.count()) == (1, events)
