"""What a LoRA adapter must satisfy: names, entries, configuration, weights, base model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain import adapters, safetensors
from controlplane.domain.adapters import AdapterRejected, BaseModel, Package, Verdict
from controlplane.domain.errors import Invalid
from routing_agent import wire
from tests import adapters as made

SHARED = Path(__file__).resolve().parents[3] / "shared" / "adapter_configs"


def base(**given) -> BaseModel:
    return BaseModel(**({"model": "m", "names": ("m", "org/M-7b")} | given))


def judged(config=None, weights: bytes | None = None, of: BaseModel | None = None) -> Verdict:
    content = made.config_bytes() if config is None else config
    content = json.dumps(content).encode() if isinstance(content, dict) else content
    stored = made.weights() if weights is None else weights
    head = stored[: safetensors.HEADER_LIMIT_BYTES + 8]
    package = Package(config=content, weights_head=head, weights_bytes=len(stored))
    return adapters.check_adapter(package, of or base())


def refusal(*args, **given) -> AdapterRejected:
    with pytest.raises(AdapterRejected) as caught:
        judged(*args, **given).raise_if_rejected()
    return caught.value


def test_a_sound_adapter_passes_every_check_and_its_facts_are_told():
    verdict = judged()
    facts = verdict.raise_if_rejected()
    assert [c.name for c in verdict.checks if c.passed] == [c.name for c in verdict.checks]
    assert (facts.rank, facts.alpha, facts.dtype, facts.tensors) == (8, 16.0, "BF16", 4)
    assert facts.target_modules == ("q_proj", "v_proj")
    assert all(check.said for check in verdict.checks)


# --- R40: names


@pytest.mark.parametrize("name", ["sql", "Sql-2.1_x", "a", "x" * 100, "a..b"])
def test_names_of_letters_digits_and_a_few_signs_are_names(name):
    assert adapters.checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "..", "a/b", "x" * 256, "x" * 101, "a\nb", "a\x00b", " x ", "\N{SNAKE}", ".a", "a-", None,
     5, "sql\n", "ünder"],
)  # fmt: skip
def test_other_names_are_refused_with_the_rule(name):
    with pytest.raises(Invalid, match="A name has 1 to 100"):
        adapters.checked_name(name)


def test_served_names_differ_by_tenant_name_and_content():
    digest, other = "0" * 64, "1" * 64
    names = [
        adapters.served_name(tenant=tenant, name=name, digest=content)
        for tenant, name, content in [
            ("a", "b.c", digest), ("a-b", "c", digest), ("a", "b-c", digest), ("a", "b.c", other),
        ]
    ]  # fmt: skip
    assert len(set(names)) == 4
    assert names[0] == "a.b.c.000000000000"


def test_a_digest_covers_names_sizes_and_contents_in_any_order():
    def file(name="adapter_config.json", size=1, sha="a"):
        return wire.AdapterFile(name=name, size_bytes=size, sha256=sha * 64)

    one, two = file(), file("adapter_model.safetensors", 2, "b")
    assert adapters.digest_of([one, two]) == adapters.digest_of([two, one])
    others = [[one], [one, file("adapter_model.safetensors", 3, "b")],
              [one, file("adapter_model.safetensors", 2, "c")]]  # fmt: skip
    assert len({adapters.digest_of(files) for files in ([one, two], *others)}) == 4


# --- R45, R46: entries


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("adapter_config.json", "adapter_config.json"),
        ("lora-a/adapter_model.safetensors", "adapter_model.safetensors"),
        ("./adapter_config.json", "adapter_config.json"),
        ("a..b.json", ""),
        ("README.md", ""),
    ],
)
def test_harmless_entries_are_taken_or_left_out(name, role):
    assert adapters.role_of_entry(name) == role


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/abs/x",
        "C:\\x",
        "C:x",
        "..\\..\\x",
        "a/../../x",
        "a/..",
        "..",
        "x\x00y",
        "a\nb",
        "",
    ],
)
def test_entries_that_lead_elsewhere_are_refused_by_name(name):
    with pytest.raises(AdapterRejected) as caught:
        adapters.role_of_entry(name)
    assert repr(name)[1:-1] in caught.value.message


@pytest.mark.parametrize("name", ["adapter_model.bin", "a/X.PT", "training_args.bin", "w.pkl"])
def test_pickles_are_refused_by_name(name):
    with pytest.raises(AdapterRejected, match="pickle"):
        adapters.role_of_entry(name)


def test_a_long_name_is_shown_in_part():
    with pytest.raises(AdapterRejected) as caught:
        adapters.role_of_entry("/" + "x" * 5000)
    assert len(caught.value.message) < 300


# --- R43: configuration


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"r": 64}, "r"),
        ({"r": 0}, "r"),
        ({"r": -1}, "r"),
        ({"r": "8"}, "r"),
        ({"r": True}, "r"),
        ({"r": 8.0}, "r"),
        ({"r": None}, "r"),
        ({"rank_pattern": {"q_proj": 32}}, "rank_pattern"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern"),
        ({"rank_pattern": {"(a+)+$": 8}}, "rank_pattern"),
        ({"rank_pattern": [8]}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 0}}, "alpha_pattern"),
        ({"lora_alpha": 0}, "lora_alpha"),
        ({"lora_alpha": "16"}, "lora_alpha"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
        ({"base_model_name_or_path": ""}, "base_model_name_or_path"),
        ({"base_model_name_or_path": "another/model"}, "base_model_name_or_path"),
        ({"base_model_name_or_path": 7}, "base_model_name_or_path"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"peft_type": None}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"init_lora_weights": "future_init"}, "init_lora_weights"),
        ({"init_lora_weights": 1}, "init_lora_weights"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"task_type": "SEQ_CLS"}, "task_type"),
        ({"target_modules": None}, "target_modules"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": ["a b"]}, "target_modules"),
        ({"target_modules": [5]}, "target_modules"),
        ({"target_modules": ""}, "target_modules"),
    ],
)
def test_a_configuration_that_engines_would_refuse_is_refused_by_field(change, field):
    error = refusal(made.config(**change), of=base(max_rank=16))
    assert error.field == field
    assert field.split(".")[0] in error.message or "rank" in error.message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 100_000, b'{"r": NaN}', b" " * 1_048_577,
     b"version https://git-lfs.github.com/spec/v1\noid sha256:0"],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(content):
    error = refusal(content)
    assert error.field == "adapter_config.json"
    assert len(error.message) < 400


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal", "mica", "lora_ga"])
def test_starting_values_that_leave_the_base_alone_are_accepted(init):
    assert judged(made.config(init_lora_weights=init)).facts


def test_rank_16_passes_where_16_is_the_most():
    verdict = judged(made.config(r=16), made.weights(rank=16), base(max_rank=16))
    assert verdict.raise_if_rejected().rank == 16


def test_a_null_base_is_taken_for_the_pool_that_was_named():
    facts = judged(made.config(base_model_name_or_path=None), of=base(pool="chat")).facts
    assert facts is not None
    assert facts.base_name == ""


@pytest.mark.parametrize(
    "name", ["m", "M-7b", "unsloth/m-7b-bnb-4bit", "/models/M-7B/", "x/m-7b-unsloth-bnb-4bit"]
)
def test_a_base_is_known_by_its_plain_name_wherever_and_however_it_is_stored(name):
    assert judged(made.config(base_model_name_or_path=name)).facts


@pytest.mark.parametrize("name", ["m-7b-instruct", "m-7b-chat", "xm"])
def test_another_training_of_the_base_is_another_model(name):
    assert refusal(made.config(base_model_name_or_path=name)).field == "base_model_name_or_path"


def test_rank_and_base_faults_are_all_listed():
    error = refusal(made.config(r=65, base_model_name_or_path="x", peft_type="IA3"))
    failed = [c["check"] for c in error.details["checks"] if not c["passed"]]
    assert failed == ["Method", "Rank", "Base model"]


def test_an_embedding_model_takes_feature_extraction():
    config = made.config(task_type="FEATURE_EXTRACTION")
    assert judged(config, of=base(kind="embedding")).facts
    assert refusal(config).field == "task_type"


# --- Real configurations


VERDICTS = {
    "glm4-9b_r8_local-base-path_fused-qkv": "",
    "llama2-7b-chat_r2_full-path-target-modules": "",
    "llama2-7b_r8_peft0.3_enable-lora": "",
    "llama3.1-8b-bnb4_r64_int-dropout": "",
    "llama3.2-3b-bnb4_r16_peft0.14": "",
    "qwen3-8b-bnb4_r16_peft0.17": "",
    "qwen3-vl-8b_r16_attention-only_peft0.18": "",
    "cosmos-reason2-2b_r32_peft0.18.1": "",
    "bert-base_r8_seqcls_modules-to-save": "modules_to_save",
    "flan-t5-xxl_r1000_alpha100000_seq2seq": "task_type",
    "peft_llama3.2-3b_r14_bdlora_nested-object": "use_bdlora",
    "peft_llama3.2-3b_r16_all-linear-string": "base_model_name_or_path",
    "peft_llama3.2-3b_r32_dora_null-targets": "use_dora",
    "peft_llama3.2-3b_r64_rslora": "target_modules",
    "peft_mt0-large_ia3_seq2seq_not-lora": "peft_type",
    "peft_roberta-base_r8_seqcls_dev-version": "modules_to_save",
    "qwen2.5-3b_r32_modules-to-save_embed-lmhead": "modules_to_save",
    "tinyllama_diag_not-lora_unknown-type": "peft_type",
    "whisper-large-v3-turbo_r32_auto-mapping_no-task-type": "",
}


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the sample data is not beside the checkout")
@pytest.mark.parametrize("name", VERDICTS)
def test_real_configurations_are_judged_as_engines_would(name):
    config = json.loads((SHARED / f"{name}.json").read_bytes())
    named = config.get("base_model_name_or_path")
    targets = config.get("target_modules")
    paths = targets if isinstance(targets, list) else ["q_proj"]
    of = base(names=("m",) if named is None else (named,))
    tensors = {}
    for path in paths:
        rank = config.get("r") or 8
        tensors[f"base_model.model.{path}.lora_A.weight"] = [rank, 4]
        tensors[f"base_model.model.{path}.lora_B.weight"] = [4, rank]
    verdict = judged(config, made.written(made.header(tensors)), of)
    failed = [check.field for check in verdict.checks if not check.passed]
    assert (failed or [""])[0] == VERDICTS[name], verdict.checks


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the sample data is not beside the checkout")
def test_everything_that_vllm_rejects_is_refused_before_it():
    known = json.loads((SHARED / "vllm_expected_verdicts.json").read_bytes())
    for case in known["rejected"]:
        refusal(made.config(**case["config_change"]), of=base(max_rank=16))
    for init in known["accepted_init_lora_weights"]:
        assert judged(made.config(init_lora_weights=init)).facts


# --- R44, R45: weights


def length(n: int) -> bytes:
    return n.to_bytes(8, "little")


@pytest.mark.parametrize(
    "content",
    [
        length(2**64 - 1) + b"{}" * 100,
        length(0),
        length(1000) + b"{}",
        length(200_000_000) + b"x" * 12,
        length(8) + b"not json",
        length(2) + b"[]",
        length(2) + b"{}",
        length(100_000) + b"[" * 100_000,
        length(5) + b'{"a":',
        length(4) + b"\xff\xff\xff\xff",
        b"1234567",
        b"",
        b"\x80\x04\x95\x20\x00\x00\x00\x00cos\nsystem\n",
        made.zipped({"archive/data.pkl": b"x"}),
        made.written({"a": 5}, b""),
        made.written({"a": {"dtype": "F32"}}, b""),
        made.written({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        made.written({"a": {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]}}, b"1234"),
        made.written({"a": {"dtype": "F32", "shape": [2**61] * 2, "data_offsets": [0, 4]}}, b"12"),
        made.written(b"null", b""),
    ],
)  # fmt: skip
def test_weights_that_lie_or_are_something_else_are_refused(content):
    error = refusal(weights=content)
    assert error.field == "adapter_model.safetensors"
    assert len(error.message) < 500


def test_a_pickle_is_told_as_what_it_is():
    assert "pickle" in refusal(weights=b"\x80\x04\x95\x20\x00\x00\x00\x00cos\nsystem\n").message
    assert "pickle" in refusal(weights=made.zipped({"archive/data.pkl": b"x" * 99})).message


def test_a_header_whose_length_begins_as_a_pickle_does_is_read():
    told = json.dumps(made.header(made.shapes())).encode()
    wanted = 0x0480  # little-endian: 80 04
    padded = told + b" " * (wanted - len(told))
    data = made.weights()[8 + len(told) :]
    assert judged(weights=made.written(padded, data)).facts


def test_a_header_above_the_limit_is_not_decoded():
    big = safetensors.HEADER_LIMIT_BYTES + 1
    package = Package(
        config=made.config_bytes(), weights_head=length(big) + b"{", weights_bytes=10 * big
    )
    with pytest.raises(AdapterRejected, match="are allowed"):
        adapters.check_adapter(package, base()).raise_if_rejected()


def test_more_tensors_than_any_adapter_has_are_refused(monkeypatch):
    monkeypatch.setattr(safetensors, "TENSORS_LIMIT", 3)
    assert "tensors" in refusal(weights=made.weights()).message


@pytest.mark.parametrize("dtype", ["F64", "I8"])
def test_numbers_that_engines_do_not_take_are_refused(dtype):
    assert dtype in refusal(weights=made.written(made.header(made.shapes(), dtype))).message


@pytest.mark.parametrize("shift", [-2, 2])
def test_tensors_must_lie_one_after_the_other(shift):
    told = made.header(made.shapes())
    name = made.name_of("v_proj", "B")
    begin, end = told[name]["data_offsets"]
    told[name]["data_offsets"] = [begin + shift, end + shift]
    assert "not its place" in refusal(weights=made.written(told)).message


def test_data_that_no_tensor_has_is_refused():
    assert "take" in refusal(weights=made.weights() + b"more").message


def test_a_tensor_must_be_as_long_as_its_shape_says():
    told = made.header(made.shapes())
    told[made.name_of("q_proj", "A")]["shape"] = [8, 17]
    assert "not its place" in refusal(weights=made.written(told)).message


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.layers.0.q_proj.lora_magnitude_vector",
        "base_model.model.layers.0.q_proj.lora_A.default.weight",
        "model.layers.0.q_proj.weight",
    ],
)
def test_tensors_that_are_no_lora_matrices_are_refused_by_name(name):
    assert (
        name in refusal(weights=made.written(made.header(made.shapes() | {name: [1, 1]}))).message
    )


@pytest.mark.parametrize("shape", [[8], [8, 16, 1], [0, 16]])
def test_a_matrix_has_two_sides(shape):
    tensors = made.shapes() | {made.name_of("q_proj", "A"): shape}
    assert "no matrix" in refusal(weights=made.written(made.header(tensors))).message


def test_a_module_has_both_matrices_of_one_rank():
    tensors = made.shapes()
    del tensors[made.name_of("q_proj", "B")]
    assert "only one" in refusal(weights=made.written(made.header(tensors))).message
    tensors[made.name_of("q_proj", "B")] = [16, 4]
    assert "ranks 8 and 4" in refusal(weights=made.written(made.header(tensors))).message


def test_ranks_are_those_of_the_configuration_and_its_pattern():
    assert "rank 4" in refusal(weights=made.weights(rank=4)).message
    mixed = made.shapes(["q_proj"]) | made.shapes(["v_proj"], rank=4)
    pattern = {"self_attn.v_proj": 4}
    config = made.config(rank_pattern=pattern, alpha_pattern={"q_proj": 32, "v_proj": 8.5})
    assert judged(config, made.written(made.header(mixed))).facts


def test_modules_beside_the_named_ones_are_refused():
    assert "o_proj" in refusal(weights=made.weights(["q_proj", "o_proj"])).message
    assert judged(made.config(target_modules="all-linear"), made.weights(["o_proj"])).facts


# --- against the base model


def test_layers_and_widths_are_checked_where_the_base_is_known():
    assert "has 2 layers" in refusal(weights=made.weights(layers=3), of=base(layers=2)).message
    assert judged(weights=made.weights(layers=2), of=base(layers=2)).facts
    assert "has 8" in refusal(of=base(kv_width=8)).message
    assert judged(of=base(kv_width=made.WIDTH)).facts


def test_other_towers_have_layers_and_widths_of_their_own():
    tensors = {
        f"base_model.model.visual.blocks.30.k_proj.lora_{h}.weight": s
        for h, s in (("A", [8, 4]), ("B", [4, 8]))
    }
    config = made.config(target_modules=["k_proj"])
    assert judged(config, made.written(made.header(tensors)), base(layers=2, kv_width=16)).facts


@pytest.mark.parametrize(("one", "other"), [("up_proj", "gate_proj"), ("gate_proj", "up_proj")])
def test_one_half_of_a_fused_pair_would_kill_an_sglang_engine(one, other):
    config = made.config(target_modules=[one])
    of = base(engines=frozenset({"sglang"}))
    assert other in refusal(config, made.weights([one]), of).message
    assert judged(config, made.weights([one])).facts
    both = made.config(target_modules=[one, other, "q_proj"])
    assert judged(both, made.weights([one, other, "q_proj"]), of).facts


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_whatever_raise_anything_but_a_refusal(config, weights):
    assert judged(config, weights).facts is None
