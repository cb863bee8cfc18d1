"""Cures that are run: each line of nvllm's that a refusal offers, with the values of a world in which it works.

The world is a copy of the packaged project with a made model and a bisect. It has no network, no container engine, no
registry, no Nix and no cluster: a line that needs one is run up to there, and its row says by which refusal that shows.
A program that would change the host, or is not on every host, is a stand-in that takes anything.
"""

from __future__ import annotations

from collections.abc import Mapping

DONE: frozenset[str] = frozenset()
NETWORK = frozenset({"NV204", "NV206", "NV209"})
ENGINE = frozenset({"NV510"})
HOST = frozenset({"NV501", "NV504", "NV505", "NV506", "NV507"})
"""What the host of the test may lack besides: a card, memory, a free port."""
SERVED = ENGINE | HOST | {"NV302", "NV901"}
REGISTRY = frozenset({"NV331"})

NVLLM: Mapping[str, tuple[str, frozenset[str]]] = {
    "nvllm --project sample status": ("nvllm --project . status", ENGINE),
    "nvllm --project sample stop sample": ("nvllm --project . stop nvllm-cpu-tiny-eager", ENGINE),
    "nvllm ablate --help": ("nvllm ablate --help", DONE),
    "nvllm bisect probe --image sample --keep none": ("nvllm bisect probe --image cpu --keep none", DONE),
    "nvllm bisect run": ("nvllm bisect run", ENGINE),
    "nvllm bisect run --image sample": ("nvllm bisect run --image cpu", ENGINE),
    "nvllm bisect start --help": ("nvllm bisect start --help", DONE),
    "nvllm bisect status": ("nvllm bisect status", DONE),
    "nvllm bless sample --profile sample": ("nvllm bless cpu --profile tiny-blessed", SERVED),
    "nvllm bless sample --profile sample --expires 30d": (
        "nvllm bless cpu --profile tiny-blessed --expires 30d",
        SERVED,
    ),
    "nvllm bless sample --profile sample --rebless": ("nvllm bless cpu --profile tiny-blessed --rebless", SERVED),
    "nvllm build sample": ("nvllm build cpu", ENGINE | NETWORK),
    "nvllm build sample --check": ("nvllm build cpu --check", NETWORK),
    "nvllm build sample --layers-only": ("nvllm build cpu --layers-only", NETWORK),
    "nvllm build sample --record": ("nvllm build cpu --record", ENGINE | NETWORK),
    "nvllm doctor sample --profile sample": ("nvllm doctor cpu --profile tiny-eager", SERVED),
    "nvllm eval --help": ("nvllm eval --help", DONE),
    "nvllm eval lm-eval --image sample --profile sample --tasks gsm8k": (
        "nvllm eval lm-eval --image cpu --profile tiny-eager --tasks gsm8k",
        SERVED | {"NV512"},
    ),
    "nvllm explain NV101": ("nvllm explain NV101", DONE),
    "nvllm explain sample": ("nvllm explain NV907", DONE),
    "nvllm export systemd sample --profile sample": ("nvllm export systemd cpu --profile tiny-blessed", SERVED),
    "nvllm fetch sample --platform sample": ("nvllm fetch cpu --platform linux/amd64", NETWORK),
    "nvllm gate --help": ("nvllm gate --help", DONE),
    "nvllm gc": ("nvllm gc", ENGINE),
    "nvllm gc --forget sample": ("nvllm gc --forget /nowhere", ENGINE),
    "nvllm image diff sample/first sample/second": ("nvllm image diff kept/first kept/second", DONE),
    "nvllm init mine": ("nvllm init mine --no-lock", DONE),
    "nvllm lock sample": ("nvllm lock cpu", DONE),
    "nvllm lock sample --model sample": ("nvllm lock cpu --model tiny-lfm2", DONE),
    "nvllm lock sample --platform sample": ("nvllm lock cpu --platform linux/amd64", DONE),
    "nvllm lock sample --update wheels": ("nvllm lock cpu --update wheels", NETWORK),
    "nvllm manifest list --all": ("nvllm manifest list --all", DONE),
    "nvllm model check sample": ("nvllm model check cpu", DONE),
    "nvllm model fetch sample sample": ("nvllm model fetch sm120 qwen35-27b-nvfp4", frozenset({"NV202"})),
    "nvllm model make sample sample": ("nvllm model make cpu tiny-lfm2", DONE),
    "nvllm patch list": ("nvllm patch list", DONE),
    "nvllm patch list --series sample": ("nvllm patch list --series v0.32.0", DONE),
    "nvllm patch prove sample sample": ("nvllm patch prove cpu aot-load-guard", ENGINE | {"NV108"}),
    "nvllm provenance sample --output sample.intoto.json --sign sample": (
        "nvllm provenance cpu --output cpu.intoto.json --sign key",
        DONE,
    ),
    "nvllm pull sample sample": ("nvllm pull 127.0.0.1:1/r cpu", REGISTRY | ENGINE),
    "nvllm pull sample sample --verify": ("nvllm pull 127.0.0.1:1/r cpu --verify", REGISTRY | ENGINE),
    "nvllm pull sample@sample sample --verify": (
        f"nvllm pull 127.0.0.1:1/r@sha256:{'0' * 64} cpu --verify",
        REGISTRY | ENGINE,
    ),
    "nvllm push sample sample": ("nvllm push 127.0.0.1:1/r cpu", frozenset({"NV108"})),  # of --offline
    "nvllm report --help": ("nvllm report --help", DONE),
    "nvllm serve sample --profile sample": ("nvllm serve cpu --profile tiny-eager", SERVED),
    "nvllm status": ("nvllm status", ENGINE),
    "nvllm stop sample": ("nvllm stop nvllm-cpu-tiny-eager", ENGINE),
}
"""By the line as the source writes it: the line that is run, and the codes by which it may end short of its work."""

FILES: Mapping[str, str] = {
    "cd": "cd",
    "chmod 644 sample": "chmod 644 file",
    "chmod u+r sample": "chmod u+r file",
    "chmod u+rwx sample": "chmod u+rwx directory",
    "chmod sample sample": "chmod go-w directory",
    "cp sample sample": "cp file other",
    "df -h": "df -h",
    "df -h sample": "df -h directory",
    "export DOCKER_CONTEXT=default": "export DOCKER_CONTEXT=default",
    "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token": (
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=~/.ray/auth_token"
    ),
    "git -C sample commit --all": "git -C repository commit --all --message=m",  # an editor asks for the message
    "git -C sample log --oneline": "git -C repository log --oneline",
    "git add .": "cd repository && git add .",
    "git checkout -- sample": "cd repository && git checkout -- file",
    "git mailsplit -o. sample": "git mailsplit -o. mails",
    "git rm sample": "cd repository && git rm file",
    "kill -KILL sample": "sleep 100 & kill -KILL $!",
    "ls -l sample": "ls -l file",
    "ls -ld sample": "ls -ld directory",
    "ls sample": "ls directory",
    "mkdir -p sample": "mkdir -p a/b",
    "mkdir sample": "mkdir new",
    "mv sample sample": "mv other moved",
    "pip config list": "python -m pip config list",
    "rm sample": "rm moved",
    "sed -i sample sample": "sed -i 1d file",
    "tail --pid=sample -f /dev/null": "tail --pid=4194305 -f /dev/null",  # above the largest number of a process
    "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE": "unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
    "cd mine": "mkdir mine && cd mine",
}
"""Lines of the shell, git and its like: each as it is run, one after the other, in a directory with such files."""

STAND_INS = frozenset(
    """
    apt-get docker fuser hf less newgrp nix nvidia-smi scp ss ssh-add systemctl usermod
    """.split()  # noqa: SIM905 - a list is easier to read so
)
"""Programs that change the host or are not on every one. Their lines are only looked at, see `cures.wrong`."""

CHECKED_BY_NAME: Mapping[str, str] = {
    "pip config unset global.sample": "global.sample is set in the configuration of a user",
    "pip index versions sample": "asks a package index",
    "pip index versions vllm": "asks a package index",
    "sudo rm -r sample": "needs the rights of root, for a file that somebody else left",
    "python tools/lock_native.py": "asks a package index; it is there, which another test sees",
}
"""Lines that are not run, and why."""
