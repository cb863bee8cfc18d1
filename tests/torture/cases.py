"""Bodies of requests that were thought of: each option at and beyond its limits, and what made engines end before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torture.drawing import MODEL, VOCABULARY

Json: TypeAlias = Any
Kind = Literal["answered", "refused", "either"]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Case:
    """A request to PATH with the JSON BODY, or with those bytes, and what is EXPECTED: 200, 4xx, or either of them."""

    path: str
    body: Json | bytes
    expected: Kind = "either"
    headers: Mapping[str, str] | None = None


def completion(expected: Kind = "either", /, **fields: Json) -> Case:
    body = {"model": MODEL, "prompt": "hello world the quick", "max_tokens": 4, **fields}
    return Case(COMPLETIONS, body, expected)


def chat(expected: Kind = "either", /, **fields: Json) -> Case:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **fields}
    return Case(CHAT, body, expected)


NUMBERS: tuple[Json, ...] = (
    0,
    1,
    -1,
    2,
    0.5,
    -0.5,
    1.0001,
    320,
    10_000,
    2**31,
    2**63,
    10**30,
    1e300,
    float("nan"),
    None,
    "x",
    [],
    {},
    True,
)
NUMERIC = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "best_of", "length_penalty"),
    *("truncate_prompt_tokens", "n", "priority", "thinking_token_budget"),
)

TOKENS: tuple[Json, ...] = (
    [999],
    [-1],
    [VOCABULARY - 1],
    [VOCABULARY],
    [2**31],
    [2**63],
    [0],
    [],
    ["x"],
    [None],
    [1.5],
    7,
    [[1]],
)

REGEXES = (
    *("(a+)+$", "(a|a)*b", ".{0,20000}", "(((((", "[", "", "\\p{L}+", "(?=a)b", "(a)\\1", "a{300}{300}", "^$", "\\"),
    *("(x+x+)+y", "[\\s\\S]*", "\u00e9+", "(?i)abc", "a{2,1}", "a{99999999999}", "\x00", "(?P<n>a)(?P=n)", "|", "a**"),
)
GRAMMARS = (
    *(
        "root ::= root",
        'root ::= root "a" | "b"',
        'root ::= "a" root',
        "root ::= undefined",
        "",
        "nonsense",
        "root ::=",
    ),
    'root ::= "a"\n' * 500,
    "\n".join(f'r{number} ::= r{number + 1} | "a"' for number in range(2000)) + '\nr2000 ::= "b"\nroot ::= r0',
    "root ::= " + "(" * 2000 + '"a"' + ")" * 2000,
    "root ::= [^\\x00-\\U0010FFFF]",
    'root ::= ("a"?){500} "b"',
    'start: "a" start | "b"',
)


def _nested(depth: int) -> Json:
    schema: Json = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


SCHEMAS: tuple[Json, ...] = (
    *(
        {},
        {"type": "object"},
        {"type": "nonsense"},
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://127.0.0.1:9/x"},
    ),
    *(
        {"enum": []},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "array", "minItems": 10**3},
    ),
    *({"type": "string", "minLength": 10**3}, {"type": "string", "maxLength": -1}, {"type": "number", "multipleOf": 0}),
    *(
        {"type": "integer", "minimum": 10**30},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
    ),
    *({"not": {}}, {"type": "array", "items": {"$ref": "#"}}, {"type": "object", "patternProperties": {"(": {}}}),
    *(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"const": "\x00"},
        {"type": ["string", 7]},
    ),
    *(
        "not json",
        "",
        "{}",
        "[",
        7,
        [],
        None,
        True,
        {"type": "object", "properties": 7},
        {"anyOf": []},
        {"type": "string", "format": "nonsense"},
    ),
    *(
        {
            "type": "object",
            "properties": {f"p{number}": {"type": "integer"} for number in range(500)},
            "required": ["p1"],
        },
        _nested(30),
        _nested(300),
    ),
    {"enum": [f"word {number}" for number in range(3000)]},
)

ROUTES_BODIES: tuple[bytes, ...] = (
    *(
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "tiny-lfm2", "prompt": "\xff"}',
        b"[" * 100_000,
    ),
    *(
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"model":"tiny-lfm2","prompt":"a","prompt":"b","max_tokens":1}',
        b"\x00" * 1000,
    ),
    b'{"model":"tiny-lfm2","prompt":"a","max_tokens":' + b"9" * 5_000 + b"}",
    b'{"model":"tiny-lfm2","prompt":"\\ud800","max_tokens":1}',
)


def every() -> Iterator[Case]:
    """Yield all cases, those first that ended an engine before."""
    yield from _ended_an_engine()
    yield from _sampling()
    yield from _tokens()
    yield from _structured()
    yield from _shapes()


def known() -> tuple[Case, ...]:
    """Return what earlier campaigns found, in an order in which it was wrong: see the table of docs/torture.md."""
    choice = {"choice": ["yes", "no"]}
    pattern = {"type": "object", "patternProperties": {"(": {}}}
    schema = {"name": "x", "schema": pattern}
    outlines = {"$defs": {"a": pattern}}  # neither xgrammar nor guidance takes such a schema
    no = {"json": {"enum": ["no"], **outlines}}
    return (
        completion("answered", structured_outputs={"regex": "[a-z]+"}),  # the first back end is xgrammar
        completion("answered", structured_outputs={"regex": "\\p{L}+"}),  # which does not know this
        completion("answered", structured_outputs=choice, max_tokens=8, ignore_eos=True),
        completion("answered", structured_outputs=choice, max_tokens=8, min_tokens=6),
        completion("answered", structured_outputs=choice, max_tokens=8, allowed_token_ids=[10]),
        chat(response_format={"type": "json_schema", "json_schema": schema}),  # outlines has 5 s to compile it
        completion("answered", structured_outputs=no, max_tokens=16),
        completion("answered", structured_outputs=no, max_tokens=16, ignore_eos=True, logprobs=1),
        completion("answered", structured_outputs=no, max_tokens=16, min_tokens=12),
        completion("answered", structured_outputs={"json": {"type": "integer", **outlines}}, max_tokens=16),
        completion("answered", logprobs=1),
        completion("refused", stop_token_ids=[999], min_tokens=1),
        completion("refused", structured_outputs={"json": {"type": "array", "minItems": 10**9}}),
        completion("refused", structured_outputs={"json": _nested(300)}),
        completion("refused", top_k=10**30),
        completion(bad_words=[" "]),  # a tokenizer may have tokens for nothing
        completion("refused", structured_outputs={"grammar": "root ::= root"}),
        completion("refused", structured_outputs={"grammar": 'root ::= "a" x\nx ::= x'}),
        completion("refused", structured_outputs={"regex": "\x00"}),
        completion("refused", structured_outputs={"json": {"type": "string", "pattern": "\x00"}}),
        completion("refused", structured_outputs={"structural_tag": "{}"}),
        completion("refused", structured_outputs=[]),
        chat("refused", structured_outputs="x"),
        chat("refused", tools=[{}], tool_choice={"type": "function", "function": {"name": "g"}}),
        completion("answered", max_tokens=None),
    )


def _ended_an_engine() -> Iterator[Case]:
    yield from known()
    yield completion("answered", prompt_logprobs=1)
    yield chat("answered", logprobs=True, top_logprobs=2)


def _sampling() -> Iterator[Case]:
    for name in NUMERIC:
        for value in NUMBERS:
            if (
                name == "n"
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
                and 320 <= value <= 10_000
            ):
                continue  # asked by the floods, where it is hung up on
            yield completion(**{name: value})
    for name in ("temperature", "top_p", "min_p", "top_k", "n", "logprobs"):
        yield chat(**{name: -1})
        yield chat(**{name: "x"})
    for setting in (
        {"temperature": 0.8, "n": 3, "logprobs": 2},
        {"echo": True, "logprobs": 1},
        {"echo": True, "max_tokens": 0},
    ):
        yield completion("answered", **setting)
    every_words: tuple[Json, ...] = (
        *([""], [" "], ["a"], ["a"] * 2000, ["\x00"], ["\u00e9\u4e2d"], "a", [[]], ["a" * 5000], []),
    )
    for words in every_words:
        yield completion(bad_words=words)
        yield completion(stop=words)
        yield completion(stop=words, include_stop_str_in_output=True, min_tokens=3)


def _tokens() -> Iterator[Case]:
    for value in TOKENS:
        yield completion(stop_token_ids=value)
        yield completion(stop_token_ids=value, min_tokens=2)
        yield completion(allowed_token_ids=value)
        yield completion(prompt=value)
        yield completion(logprob_token_ids=value)
        yield completion(logprob_token_ids=value, logprobs=1)
        yield chat(stop_token_ids=value, min_tokens=1)
        yield chat(allowed_token_ids=value)
    for key in ("999", "-1", "319", "320", str(2**31), str(2**63), "x", "", "1.5"):
        for bias in (1, -100, 101, 1e300, float("nan"), float("inf"), "x", None):
            yield completion(logit_bias={key: bias})
    yield completion(logit_bias={str(number): 1 for number in range(20_000)})
    yield completion("refused", prompt=[])
    yield completion("refused", prompt=[10] * 100_000)
    yield completion("refused", prompt="a " * 100_000)
    yield completion(stop_token_ids=list(range(100_000)))
    yield completion(allowed_token_ids=list(range(100_000)))
    yield completion(prompt=[[10, 11], [999]])
    yield completion(prompt=["a", ""])
    yield completion(prompt=[[10], []])


def _structured() -> Iterator[Case]:
    for kind, values in (("regex", REGEXES), ("grammar", GRAMMARS), ("json", SCHEMAS)):
        for value in values:
            yield completion(structured_outputs={kind: value})
    for kind, values in (("regex", REGEXES[:6]), ("grammar", GRAMMARS[:6]), ("json", SCHEMAS[:12])):
        for value in values:
            yield chat(structured_outputs={kind: value}, logprobs=True, top_logprobs=1)
    for schema in SCHEMAS:
        yield chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    choices: tuple[Json, ...] = (
        [],
        [""],
        ["a"],
        ["a", "a"],
        ["\x00"],
        ["a" * 3000],
        [f"w{number}" for number in range(3000)],
        [1],
        "a",
        [None],
    )
    for value in choices:
        yield completion(structured_outputs={"choice": value})
    tags: tuple[Json, ...] = (
        "",
        "{}",
        "x",
        '{"type":"structural_tag"}',
        '{"structures":[],"triggers":[]}',
        7,
        {},
        '{"type":"structural_tag","format":{"type":"any_text"}}',
    )
    for value in tags:
        yield completion(structured_outputs={"structural_tag": value})
        yield chat(response_format={"type": "structural_tag", "structures": value, "triggers": value})
    mixed: tuple[Json, ...] = (
        *({}, {"json_object": True}, {"json_object": False}, {"json_object": 7}, {"nonsense": 1}, None, [], "x"),
        *({"regex": "a", "json": {}}, {"json": None}, {"regex": None}, {"whitespace_pattern": "("}),
        {"regex": "a", "_backend": "nonsense"},
        {"json": {}, "disable_any_whitespace": True, "disable_fallback": True, "disable_additional_properties": True},
    )
    for value in mixed:
        yield completion(structured_outputs=value)
    for backend in ("outlines", "lm-format-enforcer", "guidance", "xgrammar"):
        yield completion(structured_outputs={"regex": "a+", "_backend": backend})
    yield completion(structured_outputs={"regex": "[a-z]+"}, min_tokens=3, stop_token_ids=[10], logit_bias={"12": 100})
    yield completion(structured_outputs={"choice": ["yes"]}, allowed_token_ids=[10])
    yield completion(structured_outputs={"regex": "a+"}, bad_words=["a"], n=2, temperature=1.0)


def _shapes() -> Iterator[Case]:
    for body in ROUTES_BODIES:
        yield Case(COMPLETIONS, body)
        yield Case(CHAT, body)
    texts = (
        "",
        "\x00",
        "\u202e\u0301\ufffd",
        "\U0001f600" * 30,
        "<|im_end|>" * 10,
        "\ud800".encode("utf-8", "replace").decode(),
    )
    for text in texts:
        yield completion(prompt=text)
        yield chat(messages=[{"role": "user", "content": text}])
        yield chat(messages=[{"role": text, "content": "a"}])
    messages: tuple[Json, ...] = (
        [],
        None,
        7,
        [None],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "nonsense"}]}],
    )
    for value in messages:
        yield chat(messages=value)
    urls = ("http://127.0.0.1:9/x.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "")
    for url in urls:
        yield chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
    tools: tuple[Json, ...] = (
        [],
        [{}],
        7,
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}],
    )
    for value in tools:
        for choice in ("auto", "required", "none", {"type": "function", "function": {"name": "g"}}):
            yield chat(tools=value, tool_choice=choice)
    for template in (
        "{{ 1/0 }}",
        "{% for a in range(10) %}",
        "{{ messages.__class__ }}",
        "{{ raise_exception('x') }}",
        "",
    ):
        yield chat(chat_template=template)
    for name in (
        "chat_template_kwargs",
        "kv_transfer_params",
        "vllm_xargs",
        "cache_salt",
        "request_id",
        "user",
        "suffix",
        "stream_options",
    ):
        for value in ("", "x", 7, {}, {"a": {"b": []}}, [], None, "a" * 5000):
            yield completion(**{name: value})
            yield chat(**{name: value})
    for stream in (
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ):
        yield completion("answered", **stream)
        yield completion(**stream, n=2, logprobs=1, temperature=1)
        yield completion(**stream, logprobs=10_000)
        yield chat(**stream, structured_outputs={"regex": "("})
    yield Case(COMPLETIONS, {"model": "another", "prompt": "a"}, "refused")
    yield completion("answered", prompt_embeds=None)
    yield completion(prompt_embeds="AAAA", prompt=None)
    yield completion(prompt_embeds="gASVBAAAAAAAAACMAXiULg==")
    yield completion(headers_are="unknown fields", **{f"unknown{number}": number for number in range(1000)})
