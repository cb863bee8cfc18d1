"""What is called a secret, and what only reads like it."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import secret

SECRETS = """
    TOKEN HF_TOKEN HFTOKEN HUGGING_FACE_HUB_TOKEN MODELSCOPE_API_TOKEN AWS_SESSION_TOKEN GITHUB_TOKEN_2 AUTH_TOKENS
    X_TOKEN_PROD hf-token access-token kv-transfer-config.authToken id_token
    MY_SECRET SECRET_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID S3_SECRET_ACCESS_KEY client-secret
    PASSWORD PGPASSWORD DB_PASSWORD DB_PASSWD MYSQL_PWD SMTP_PASS ssl-keyfile-password SSH_PASSPHRASE
    VLLM_API_KEY OPENAI_KEY EXA_API_KEY APIKEY api-key X_API_KEY private-key STORAGE_KEY
    GOOGLE_APPLICATION_CREDENTIALS aws-credential AUTHORIZATION
"""

HARMLESS = """
    max-tokens max-num-batched-tokens max-num-scheduled-tokens spec-tokens long-prefill-token-threshold
    dbo-decode-token-threshold num-experts-per-token enable-prompt-tokens-details return-tokens-as-token-ids
    tokenizer tokenizer-mode detokenize skip-tokenizer-init enable-tokenizer-info-endpoint eos-token think-end-token
    image_token special-token encoder_cudagraph_token_budgets suffix_decoding_min_token_prob
    sp_min_token_num valid-tokens hybrid_token_budget
    allow-credentials ssl-keyfile ssl-certfile key sort-key cache_key public-key monkey passes compile-passes
    VLLM_ENABLE_PREGRAD_PASSES VLLM_MAX_BAD_WORDS_TOTAL_TOKENS VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE VLLM_USE_FASTOKENS
    VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD OMP_NUM_THREADS PWD OLDPWD PATH SSH_AUTH_SOCK
    HF_TOKEN_PATH PASSWORD_FILE SSL_KEY_PATH AWS_SHARED_CREDENTIALS_FILE
"""

names = st.sampled_from((SECRETS + HARMLESS).split())


def test_the_names_of_secrets_and_those_that_only_read_like_one() -> None:
    """Among the harmless is every argument and variable of vLLM 0.28 with one of the words, but for its two secrets."""
    for names_, expected in ((SECRETS, True), (HARMLESS, False)):
        spelled = [*names_.split(), *(f"--{name}" for name in names_.split())]
        assert [name for name in spelled if secret.named(name) != expected] == []


@given(
    st.sampled_from((SECRETS + HARMLESS).split()), st.sampled_from(["-", "_"]), st.sampled_from([str.upper, str.lower])
)
def test_neither_case_nor_the_separator_makes_a_difference(
    name: str, separator: str, case: Callable[[str], str]
) -> None:
    spelled = case(name).replace("-", separator).replace("_", separator)
    assert secret.named(spelled) == secret.named(name)


@given(st.from_regex(r"([a-z]{1,8}[-_.]){0,3}", fullmatch=True), st.sampled_from(["secret", "password", "api-key"]))
def test_what_stands_before_does_not_hide_it(before: str, name: str) -> None:
    assert secret.named(before + name)


INSIDE = (
    ("http://me:hunter2@proxy:3128", "a URL with a password"),
    ("see http://me:hunter2@proxy:3128/x", "a URL with a password"),
    ('{"connector": {"list": [{"api_key": "hunter2"}]}}', "a value for api_key"),
    ('[{"password": 7}]', "a value for password"),
    ("hf_" + "a1" * 17, "a token that begins with hf_"),
    ("--x=hf_" + "a1" * 17, "a token that begins with hf_"),
    ("sk-proj-" + "a1" * 17, "a token that begins with sk-"),
    ("ghp_" + "a1" * 18, "a token that begins with ghp_"),
    ("github_pat_" + "a1" * 18, "a token that begins with github_pat_"),
    ("glpat-" + "a1" * 10, "a token that begins with glpat-"),
    ("nvapi-" + "a1" * 20, "a token that begins with nvapi-"),
    ("AKIA" + "A1" * 8, "a token that begins with AKIA"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "a token that begins with eyJ"),
)
WITHOUT = (
    *("http://proxy:3128", "http://me@proxy/x", "a@b:c", "{", "7", "null", "[" * 100_000),
    *('{"num_speculative_tokens": 3, "method": "ngram"}', '{"password": null}', '{"use_token": true}'),
)


def test_a_secret_inside_a_value_is_named_and_nothing_else_is() -> None:
    rows = (*INSIDE, *((text, None) for text in WITHOUT))
    assert [(text[:80], secret.inside(text)) for text, named in rows if secret.inside(text) != named] == []


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.just("a"), inner)))
def test_no_document_of_harmless_keys_holds_one(document: object) -> None:
    assert secret.inside(json.dumps(document)) in {None, "a URL with a password"}
