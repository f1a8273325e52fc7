"""What may be written down of a run: simple values and allowed names, never a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from notebook_accel.events.discretion import (
    HIDDEN,
    described,
    environment,
    hider,
    is_secret,
    named,
)


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "api_key", "WANDB_API_KEY", "hftoken", "AWS_SECRET_ACCESS_KEY", "password",
     "PGPASSWORD", "db_pwd", "credentials", "AUTH_HEADER", "cookie", "private_thing", "apiKey",
     "key", "OPENAI_KEY", "API_KEY_2", "ssh_key", "sshKey", "GITHUB_TOKEN_RO", "oauthToken",
     "SLACK_WEBHOOK_URL", "client_secret", "mysqlpasswd", "token", "apikey",
     "AWS_ACCESS_KEY_ID", "ID_TOKEN", "JOIN_TOKEN", "PRIMARY_KEY", "TOKEN_VALUE"],
)  # fmt: skip
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["tokenizer", "num_tokens", "max_tokens", "keyword", "lr", "keys", "PWD", "OLDPWD", "author",
     "GIT_AUTHOR_NAME", "key_dim", "sort_key", "monkey", "max_token", "pad_token", "eosToken",
     "keep_private", "token_type_ids", "key_padding_mask", "keyboard", "keypoints", "compass"],
)  # fmt: skip
def test_names_that_only_sound_like_secrets_are_not(name: str) -> None:
    assert not is_secret(name)


def test_the_environment_goes_in_by_a_list_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HOME_ADDRESS", "nobody's business")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "abcdefgh")
    kept = environment({"OMP_NUM_THREADS": "3", "WANDB_API_KEY": "abcdefgh"})
    assert kept["NCCL_DEBUG"] == "INFO" and kept["OMP_NUM_THREADS"] == "3"
    assert not {"HOME_ADDRESS", "NCCL_AUTH_TOKEN", "WANDB_API_KEY", "PATH"} & kept.keys()


def test_an_allowed_variable_that_holds_a_secret_is_kept_without_it() -> None:
    kept = environment({"TORCH_URL": "https://me:hunter22@example.org/x"})
    assert kept["TORCH_URL"] == f"https://{HIDDEN}@example.org/x"


@pytest.mark.parametrize(
    "secret",
    ["hf_AbCdEfGhIjKlMnOp", "sk-proj-1234567890abcdef", "ghp_0123456789abcdef",
     "github_pat_0123456789abcdef", "xoxb-123456789012-abc", "AKIAIOSFODNN7EXAMPLE0",
     "eyJhbGciOi.eyJzdWIiOiIxMjM0"],
)  # fmt: skip
def test_what_looks_like_a_secret_is_dotted_out_of_any_text(secret: str) -> None:
    assert hider()(f"using {secret}, ok") == f"using {HIDDEN}, ok"


def test_a_folder_is_no_secret_even_under_the_name_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path))
    said = f"FileNotFoundError: {tmp_path}/data.csv"
    assert hider()(said) == said


def test_whether_there_is_a_secret_is_none() -> None:
    given = {"token": True, "use_auth": None, "password": "hunter22", "pin_key": 1234}
    assert described(given) == {**given, "password": HIDDEN, "pin_key": HIDDEN}


def test_values_of_secrets_are_dotted_out_wherever_they_are_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct horse")
    hide = hider({"login_key": "battery+staple", "lr": "a plain value"})
    assert hide("correct horse, battery+staple") == f"{HIDDEN}, {HIDDEN}"
    assert hide("a plain value") == "a plain value"


def test_simple_arguments_are_kept_by_value_and_others_by_type() -> None:
    class Data:
        shape = (1000, 4)

    def main(lr: float, data: Any, *more: int, sizes: Any = (8, 1), token: str = "x") -> None: ...

    given = named(main, (0.1, Data(), 7), {})
    kept = {name: described(value, name) for name, value in given.items()}
    assert kept == {
        "lr": 0.1, "data": "<Data (1000, 4)>", "more": [7], "sizes": [8, 1], "token": HIDDEN,
    }  # fmt: skip


def test_secrets_inside_containers_are_dotted_out_by_their_key() -> None:
    assert described({"lr": 1, "api_key": "abc", "deep": {"password": 1234}}) == {
        "lr": 1, "api_key": HIDDEN, "deep": {"password": HIDDEN},
    }  # fmt: skip


def test_a_call_that_does_not_fit_is_described_all_the_same() -> None:
    assert named(lambda: None, (5,), {"x": 1}) == {"args[0]": 5, "x": 1}
