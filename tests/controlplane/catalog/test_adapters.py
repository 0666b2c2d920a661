"""Uploads of adapters: what is kept, what is refused, and that nothing half-written stays."""

from __future__ import annotations

import errno
import gzip
import io
import os
import pickle
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.catalog import selectors, services, uploads
from controlplane.catalog.models import Adapter, AdapterVersion
from controlplane.catalog.uploads import Incoming
from controlplane.domain.adapters import AdapterRejected
from controlplane.domain.errors import Conflict, Invalid, NotFound, ProblemError, TooLarge
from tests import adapters as made
from tests.factories import ACTOR, WHY, make_pool, make_tenant

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def _world(settings, tmp_path: Path):
    settings.ADAPTER_DIR = tmp_path / "adapters"
    make_pool("chat")
    make_tenant("acme")


def incoming(files: dict[str, bytes]) -> list[Incoming]:
    return [Incoming(name, io.BytesIO(content)) for name, content in files.items()]


def sound(fill: int = 0, **config) -> dict[str, bytes]:
    return {CONFIG: made.config_bytes(**config), WEIGHTS: made.weights(fill=fill)}


def upload(files: dict[str, bytes] | None = None, **given) -> Adapter:
    wanted = services.Wanted(**({"tenant": "acme", "name": "sql", "model": "m"} | given))
    sent = incoming(sound() if files is None else files)
    with services.received(wanted=wanted, uploaded=sent, actor=ACTOR) as received:
        return services.add_version(upload=received, **WHY)


def refused(files: dict[str, bytes], **given) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        upload(files, **given)
    assert on_disk() == []
    assert AdapterVersion.objects.count() == 0
    return caught.value


def on_disk() -> list[str]:
    root = uploads.folder_of("x").parent
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_an_upload_is_kept_by_its_digest_and_is_active_at_once():
    adapter = upload()
    version = adapter.versions.get()
    assert (version.number, version.state, version.rank) == (1, "active", 8)
    assert version.served_name == f"acme.sql.{version.digest[:12]}"
    assert on_disk() == [f"{version.digest}/{CONFIG}", f"{version.digest}/{WEIGHTS}"]
    stored = uploads.folder_of(version.digest) / WEIGHTS
    assert stored.read_bytes() == made.weights()
    assert stored.parent.stat().st_mode & 0o077 == 0
    event = AuditEvent.objects.get(verb="adapter.upload")
    assert (event.target, event.after["digest"]) == ("acme/sql", version.digest)
    assert event.fleet_revision


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tgz"])
@pytest.mark.parametrize("folder", ["", "lora-a/", "./"])
def test_an_archive_is_as_good_as_the_two_files(kind, folder):
    entries = {f"{folder}{name}": content for name, content in sound().items()}
    entries |= {f"{folder}README.md": b"# hello", f"{folder}a..b.json": b"{}"}
    packed = made.zipped(entries) if kind == "zip" else made.tarred(
        entries, "w" if kind == "tar" else "w:gz"
    )  # fmt: skip
    version = upload({f"sql.{kind}": packed}).versions.get()
    assert on_disk() == [f"{version.digest}/{CONFIG}", f"{version.digest}/{WEIGHTS}"]


def test_a_new_upload_under_a_name_is_its_next_version_and_waits_until_it_is_loaded():
    first = upload().versions.get()
    adapter = upload(sound(fill=1))
    second = adapter.versions.get(number=2)
    assert (second.state, second.served_name != first.served_name) == ("incoming", True)
    third = upload(sound(fill=2)).versions.get(number=3)
    states = dict(adapter.versions.values_list("number", "state"))
    assert states == {1: "active", 2: "retired", 3: "incoming"}
    assert services.activate_version(version_id=third.pk, **WHY)
    assert not services.activate_version(version_id=third.pk, **WHY)
    assert dict(adapter.versions.values_list("number", "state"))[1] == "retired"


def test_the_same_content_again_is_told_and_changes_nothing():
    upload()
    with pytest.raises(Conflict, match="as version 1"):
        upload()
    assert AdapterVersion.objects.count() == 1
    assert not list((uploads.folder_of("x").parent / "incoming").iterdir())


def test_the_same_content_of_two_tenants_is_stored_once_and_stays_for_the_other():
    make_tenant("globex")
    one, other = upload(), upload(tenant="globex")
    assert len(on_disk()) == 2
    names = set(AdapterVersion.objects.values_list("served_name", flat=True))
    assert len(names) == 2  # R40: distinct at the engines
    services.delete_adapter(public_id=one.public_id, **WHY)
    services.forget_version(version_id=one.versions.get().pk, **WHY)
    assert len(on_disk()) == 2
    services.delete_adapter(public_id=other.public_id, **WHY)
    services.forget_version(version_id=other.versions.get().pk, **WHY)
    assert on_disk() == []
    assert Adapter.objects.count() == 0


# --- R40: names


def test_names_that_mean_a_model_or_another_adapter_are_refused():
    selectors.Model.objects.filter(name="m").update(aliases=["default"])
    upload(name="sql")
    for name in ("m", "M", "default", "SQL"):
        with pytest.raises(Conflict) as caught:
            upload(sound(fill=9), name=name)
        assert caught.value.field == "name"
    for name in ("", "..", "a/b", "x" * 256, "a\nb", "a\x00b", " x ", "\N{SNAKE}"):
        with pytest.raises(Invalid):
            upload(name=name)


def test_a_model_cannot_take_the_name_of_an_adapter():
    upload()
    for name in ("sql", "acme/sql"):
        with pytest.raises(Conflict, match="adapter of the tenant 'acme'"):
            services.create_model(name=name, **WHY)


def test_a_name_stays_with_its_base_model():
    make_pool("other", model="n")
    upload()
    with pytest.raises(Conflict, match="an adapter of m"):
        upload(sound(base_model_name_or_path="n"), model="n")


def test_a_deleted_name_is_free_at_once():
    first = upload()
    services.delete_adapter(public_id=first.public_id, **WHY)
    assert upload().pk != first.pk
    with pytest.raises(NotFound):
        services.delete_adapter(public_id=first.public_id, **WHY)


# --- R43: configuration and base


def test_rank_is_checked_against_the_pools_of_the_model():
    make_pool("small", model="n", settings={"adapter_max_rank": 16})
    config = made.config_bytes(r=64, base_model_name_or_path="n")
    error = refused({CONFIG: config, WEIGHTS: made.weights(rank=64)}, model="n")
    assert (error.status, error.field) == (400, "r")
    assert "16" in error.message
    rank_16 = {CONFIG: made.config_bytes(r=16, base_model_name_or_path="n"),
               WEIGHTS: made.weights(rank=16)}  # fmt: skip
    assert upload(rank_16, model="n").versions.get().rank == 16


def test_a_null_base_needs_the_pool_to_be_named():
    files = sound(base_model_name_or_path=None)
    assert refused(files).field == "base_model_name_or_path"
    assert upload(files, pool="chat", model="").model.name == "m"


def test_the_source_of_a_version_is_a_name_of_its_model():
    selectors.ModelVersion.objects.update(source="hf:org/M-7B")
    assert upload(sound(base_model_name_or_path="unsloth/m-7b-bnb-4bit"))


@pytest.mark.parametrize(
    ("given", "field"),
    [({"model": ""}, "model"), ({"model": "x"}, "model"), ({"pool": "x"}, "pool"),
     ({"tenant": "x"}, "tenant")],
)  # fmt: skip
def test_what_does_not_exist_is_named(given, field):
    with pytest.raises(ProblemError) as caught:
        upload(**given)
    assert caught.value.field == field


def test_a_pool_of_another_model_is_refused():
    make_pool("other", model="n")
    with pytest.raises(Invalid, match="serves 'n'"):
        upload(pool="other")


def test_a_tenant_uploads_only_for_models_it_may_call():
    make_tenant("narrow", allowed_models=["other"])
    with pytest.raises(NotFound):
        upload(tenant="narrow")


@pytest.mark.parametrize("missing", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(missing):
    files = sound()
    del files[missing]
    assert refused(files).field == missing


def test_a_configuration_of_50_mb_is_refused_by_name():
    error = refused({CONFIG: b" " * 50_000_000, WEIGHTS: made.weights()})
    assert (error.status, error.field) == (400, CONFIG)


def test_a_refusal_lists_every_check_and_is_in_the_audit_log():
    error = refused(sound(r=65, base_model_name_or_path="x"))
    assert isinstance(error, AdapterRejected)
    failed = [c["check"] for c in error.details["checks"] if not c["passed"]]
    assert failed == ["Rank", "Base model"]
    event = AuditEvent.objects.get(verb="adapter.refuse")
    assert (event.target, event.fleet_revision) == ("acme/sql", None)


# --- R44, R45: weights


@pytest.mark.parametrize(
    "weights",
    [(2**64 - 1).to_bytes(8, "little") + b"{}", b"", b"1234567",
     (200_000_000).to_bytes(8, "little") + b"x" * 12],
)  # fmt: skip
def test_headers_that_lie_cost_no_memory_and_leave_no_file(weights):
    tracemalloc.start()
    assert refused({CONFIG: made.config_bytes(), WEIGHTS: weights}).status == 400
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


class _Trap:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def test_pickles_are_never_opened(tmp_path: Path):
    marker = tmp_path / "ran"
    trap = pickle.dumps(_Trap(marker))
    config = made.config_bytes()
    for files in (
        {CONFIG: config, "adapter_model.bin": trap},
        {CONFIG: config, WEIGHTS: trap},
        {"a.zip": made.zipped(sound() | {"adapter_model.bin": trap})},
        {"a.tar.gz": made.tarred(sound() | {"x/training_args.bin": trap})},
    ):
        assert refused(files).status == 400
    assert not marker.exists()


# --- R46: names of entries


@pytest.mark.parametrize("name", ["../../x", "/abs/x", "C:\\x", "..\\..\\x", "a/../../x", "x\x00y"])
@pytest.mark.parametrize("kind", ["zip", "tar.gz", "plain"])
def test_entries_that_lead_elsewhere_are_refused_and_nothing_is_written(name, kind, tmp_path):
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    entries = sound() | {name: b"x"}
    if kind == "plain":
        files = entries
    elif kind == "zip":
        # The archive's writer cuts names at a NUL, so it is put in by hand.
        packed = made.zipped(sound() | {name.replace("\x00", "?"): b"x"})
        files = {"a.zip": packed.replace(b"x?y", b"x\x00y")}
    else:
        files = {"a.tar.gz": made.tarred(entries)}
        if "\x00" in name:  # tar has no such name: it ends there
            files = {"a.tar.gz": made.tarred(sound() | {"x\ny": b"x"})}
    error = refused(files)
    assert error.status == 400
    assert error.field
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == before


def test_links_and_devices_in_archives_are_refused():
    link = tarfile.TarInfo("adapter_config.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(link)
    assert "link" in refused({"a.tar": file.getvalue()}).message
    entry = zipfile.ZipInfo("adapter_config.json")
    entry.external_attr = 0o120777 << 16
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    assert "link" in refused({"a.zip": file.getvalue()}).message


def test_what_is_no_archive_or_a_broken_one_is_refused():
    good = made.zipped(sound())
    for files in (
        {"a.zip": b"not an archive"},
        {"a.zip": b""},
        {"a.zip": good[:-30]},
        {"a.zip": good.replace(b"PK\x03\x04", b"PK\x03\x05", 1)},
        {"a.tar": b"x" * 600},
        {"a.tar.gz": b"\x1f\x8b nothing"},
        {"a.tgz": gzip.compress(b"x" * 600)},
        {"a.tgz": made.tarred(sound())[:150]},
        {"a.zip": good, CONFIG: made.config_bytes()},
        {"a.zip": made.zipped({f"{n}/adapter_config.json": b"{}" for n in range(2)})},
    ):
        assert refused(files).status == 400


def test_bombs_are_refused_before_they_unfold(settings):
    settings.ADAPTER_LIMIT_BYTES = 1_000_000
    zeros = bytes(12_000_000)
    big = {CONFIG: made.config_bytes(), WEIGHTS: zeros}
    assert refused({"a.zip": made.zipped(big)}).status == 413
    assert refused({"a.tgz": made.tarred(big)}).status == 413
    assert refused({"a.tgz": made.tarred({"huge.txt": zeros} | sound())}).status == 413
    assert refused(big).status == 413
    many = {f"{n}.txt": b"" for n in range(1001)}
    assert "entries" in refused({"a.zip": made.zipped(many)}).message
    assert "entries" in refused({"a.tar": made.tarred(many, "w")}).message
    names = {f"{'x' * 60_000}{n}": b"" for n in range(20)}
    assert "list of entries" in refused({"a.zip": made.zipped(names)}).message


def test_a_huge_header_in_a_tar_is_not_read():
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 500_000_000
    packed = gzip.compress(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10_000))
    tracemalloc.start()
    assert refused({"a.tgz": packed}).status == 400
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


# --- quota


def test_a_tenant_has_a_quota_of_bytes_and_of_adapters(settings):
    size = upload().versions.get().size_bytes
    settings.ADAPTER_TENANT_BYTES = size + 10
    with pytest.raises(TooLarge):
        upload(sound(fill=1), name="two")
    settings.ADAPTER_TENANT_BYTES = size
    with pytest.raises(TooLarge, match="delete one first"):
        upload(sound(fill=1), name="two")
    settings.ADAPTER_TENANT_BYTES = 10 * size
    settings.ADAPTER_TENANT_COUNT = 1
    with pytest.raises(Conflict, match="delete one first"):
        upload(sound(fill=1), name="two")


def add_without_its_tenant(received: services.Received) -> None:
    selectors.Tenant.objects.all().delete()
    services.add_version(upload=received, **WHY)


def test_what_could_not_be_stored_in_the_database_is_kept_nowhere():
    wanted = services.Wanted(tenant="acme", name="sql", model="m")
    with services.received(wanted=wanted, uploaded=incoming(sound()), actor=ACTOR) as received:
        with pytest.raises(NotFound):
            add_without_its_tenant(received)
        assert len(on_disk()) == 2
    assert on_disk() == []


def test_stages_of_a_crash_are_swept_and_packages_stay():
    upload()
    root = uploads.folder_of("x").parent
    for folder in (root / "incoming" / "half", root / ("a" * 64)):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x")
        os.utime(folder, (1, 1))
    (root / "incoming" / "young").mkdir()
    assert uploads.forget_leftovers() == 1
    assert [p.name for p in (root / "incoming").iterdir()] == ["young"]
    assert len(on_disk()) == 3


# --- pin, share, use


def test_pinning_and_sharing_are_audited_and_touch_the_fleet():
    make_tenant("globex")
    adapter = upload()
    services.update_adapter(public_id=adapter.public_id, pinned=True, expected_version=1, **WHY)
    services.update_adapter(public_id=adapter.public_id, shared_with=["globex", "acme"], **WHY)
    adapter.refresh_from_db()
    assert (adapter.pinned, [t.slug for t in adapter.shared_with.all()]) == (True, ["globex"])
    events = AuditEvent.objects.filter(verb="adapter.update")
    assert all(event.fleet_revision for event in events)
    assert events.count() == 2
    with pytest.raises(Conflict):
        services.update_adapter(public_id=adapter.public_id, pinned=False, expected_version=1,
                                **WHY)  # fmt: skip
    with pytest.raises(Invalid):
        services.update_adapter(public_id=adapter.public_id, shared_with=["nobody"], **WHY)


def test_a_tenant_sees_its_own_and_what_is_shared_with_it():
    for slug in ("globex", "other"):
        make_tenant(slug)
    shared, own = upload(name="shared"), upload(tenant="globex", name="own")
    services.update_adapter(public_id=shared.public_id, shared_with=["globex"], **WHY)
    assert set(selectors.adapters(tenants=["globex"])) == {shared, own}
    assert set(selectors.adapters(tenants=["acme"])) == {shared}
    assert not selectors.adapters(tenants=["other"])
    with pytest.raises(NotFound):
        selectors.adapter(own.public_id, tenants=["acme"])


def test_use_is_remembered_and_older_news_change_nothing():
    adapter = upload()
    name, now = adapter.versions.get().served_name, timezone.now()
    services.book_adapter_use({name: now, "unknown": now})
    services.book_adapter_use({name: now - timezone.timedelta(hours=1)})
    adapter.refresh_from_db()
    assert adapter.last_used_at == now


def test_background_work_starts_after_the_commit(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=False) as callbacks:
        upload()
    assert len(callbacks) == 2  # the loop of adapters and the publisher
    with django_capture_on_commit_callbacks(execute=False) as callbacks, pytest.raises(Conflict):
        upload()
    assert callbacks == []  # of what was rolled back nobody is told


@pytest.mark.parametrize("pack", [dict, lambda files: {"a.zip": made.zipped(files)},
                                  lambda files: {"a.tar.gz": made.tarred(files)}])  # fmt: skip
def test_a_full_disk_is_told_as_such_and_not_as_a_bad_archive(monkeypatch, pack):
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(uploads.os, "fsync", full)
    error = refused(pack(sound()))
    assert (error.status, error.code) == (507, "storage_failed")
    assert "No space left on device" in error.message


def test_a_folder_that_cannot_be_made_is_told_too(settings, tmp_path):
    (tmp_path / "file").write_text("")
    settings.ADAPTER_DIR = tmp_path / "file" / "adapters"
    with pytest.raises(ProblemError) as caught:
        upload()
    assert (caught.value.status, caught.value.code) == (503, "storage_failed")
