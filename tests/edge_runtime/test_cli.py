from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edge_runtime import Bundle
from fedtailor import main
from protocol.errors import ManifestError
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import CLASSES, Scope, raw_samples

SUPPORT, QUERY = raw_samples(20, seed=1), raw_samples(5, seed=2)


def run(*words: str | Path) -> Result:
    return CliRunner(env={"FEDTAILOR_TRUSTED_KEY": ""}).invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "support.npy", SUPPORT)
    np.save(tmp_path / "query.npy", QUERY)
    return tmp_path


@pytest.fixture
def mine(folder: Path, bundle: Bundle, trusted_file: Path) -> Path:
    bundle.personalize(SUPPORT).save(folder / "mine")
    return folder / "mine"


def test_personalize_then_predict(bundle: Bundle, folder: Path, trusted_file: Path) -> None:
    made = run("edge", "personalize", bundle.path, folder / "support.npy", "--trusted", trusted_file, "--out", folder / "mine", "--json")
    assert made.exit_code == 0, made.output
    content = json.loads(made.output)
    assert content["samples"] == 20
    assert content["bundle"] == bundle.digest
    assert content["milliseconds"] > 0
    answer = run("edge", "predict", folder / "mine", folder / "query.npy", "--json")
    lines = [json.loads(line) for line in answer.output.splitlines()]
    assert [line["sample"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert [line["label"] for line in lines] == bundle.personalize(SUPPORT).predict(QUERY).tolist()
    assert all(1 / len(CLASSES) <= line["probability"] <= 1 for line in lines)


def test_personalize_speaks_to_people(bundle: Bundle, folder: Path, trusted_file: Path) -> None:
    made = run("edge", "personalize", bundle.path, folder / "support.npy", "--trusted", trusted_file, "--out", folder / "mine")
    assert made.exit_code == 0, made.output
    assert "20 unlabelled samples" in made.output


def test_the_trusted_key_may_come_from_the_environment(bundle: Bundle, folder: Path, trusted_file: Path) -> None:
    words = ["edge", "personalize", str(bundle.path), str(folder / "support.npy"), "--out", str(folder / "mine")]
    assert CliRunner().invoke(main, words, env={"FEDTAILOR_TRUSTED_KEY": str(trusted_file)}).exit_code == 0
    assert CliRunner().invoke(main, words, env={"FEDTAILOR_TRUSTED_KEY": None}).exit_code == 2


def test_predict_takes_several_sources_in_order(mine: Path, folder: Path) -> None:
    answer = run("edge", "predict", mine, folder / "query.npy", folder / "support.npy")
    assert len(answer.output.splitlines()) == 25


def test_predict_finds_a_bundle_that_moved(bundle: Bundle, mine: Path, folder: Path, trusted_file: Path) -> None:
    assert run("edge", "predict", mine, folder / "query.npy", "--bundle", bundle.path, "--trusted", trusted_file).exit_code == 0
    assert run("edge", "predict", mine, folder / "query.npy", "--bundle", bundle.path).exit_code == 2


@pytest.mark.parametrize(
    ("support", "code"),
    [
        (raw_samples(0), 11),
        (raw_samples(3).reshape(3, 4), 12),
        (raw_samples(3).astype(np.float64), 13),
        (np.full((3, 2, 2), np.nan), 14),
    ],
)
def test_bad_samples_have_exit_codes(bundle: Bundle, folder: Path, trusted_file: Path, support: np.ndarray, code: int) -> None:
    np.save(folder / "bad.npy", support)
    answer = run("edge", "personalize", bundle.path, folder / "bad.npy", "--trusted", trusted_file, "--out", folder / "mine")
    assert answer.exit_code == code
    assert not (folder / "mine").exists()


def test_another_signer_has_an_exit_code_and_json(bundle: Bundle, folder: Path) -> None:
    PrivateKey.generate().public.save(folder / "other.pub")
    answer = run(
        "edge", "personalize", bundle.path, folder / "support.npy", "--trusted", folder / "other.pub", "--out", folder / "x", "--json"
    )
    assert answer.exit_code == 23
    assert json.loads(answer.output)["error"] == "BundleSignatureError"


def run_words(bundle: Path, folder: Path, trusted: Path, broker: str = "mqtt://127.0.0.1:9") -> list[str | Path]:
    identity: list[str | Path] = ["--device", "pi-1", "--key", folder / "pi-1.key", "--state", folder / "state"]
    place: list[str | Path] = ["--broker", broker, "--data", folder, "--deadline", "0.5"]
    return ["edge", "run", "--bundle", bundle, "--trusted", trusted, *identity, *place]


def test_run_without_a_broker_ends_at_the_deadline(bundle: Bundle, folder: Path, trusted_file: Path) -> None:
    PrivateKey.generate().save(folder / "pi-1.key")
    answer = run(*run_words(bundle.path, folder, trusted_file))
    assert answer.exit_code == 51, answer.output
    assert (folder / "state" / "boot").read_text() == "1\n"


def test_run_refuses_what_could_never_work_before_it_connects(
    bundle_paths: dict[Scope | None, Path], folder: Path, trusted_file: Path
) -> None:
    assert run(*run_words(bundle_paths[None], folder, trusted_file)).exit_code == ManifestError.exit_code
    assert run(*run_words(bundle_paths["device"], folder, trusted_file, "http://hub")).exit_code == 10
    assert run(*run_words(bundle_paths["device"], folder, trusted_file)).exit_code == 72  # no key file


@pytest.mark.parametrize("command", ["personalize", "predict", "run"])
def test_help_has_an_example(command: str) -> None:
    answer = run("edge", command, "--help")
    assert answer.exit_code == 0
    assert "Example: fedtailor edge" in answer.output


def test_samples_come_as_json_lines_on_standard_input(bundle: Bundle, mine: Path, folder: Path, trusted_file: Path) -> None:
    lines = "".join(json.dumps({"sample": f"q{place}", "values": sample.tolist()}) + "\n" for place, sample in enumerate(QUERY))
    runner = CliRunner(env={"FEDTAILOR_TRUSTED_KEY": ""})
    answer = runner.invoke(main, ["edge", "predict", str(mine), "-", "--top", "2"], input=lines)
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["sample"] for line in found] == ["q0", "q1", "q2", "q3", "q4"]
    assert [line["label"] for line in found] == bundle.personalize(SUPPORT).predict(QUERY).tolist()
    assert all(line["top"][0]["label"] == line["label"] and len(line["top"]) == 2 for line in found)
    words = ["edge", "personalize", str(bundle.path), "-", "--trusted", str(trusted_file), "--out", str(folder / "x"), "--json"]
    made = runner.invoke(main, words, input="".join(f"{json.dumps(each.tolist())}\n" for each in SUPPORT))
    assert json.loads(made.stdout)["samples"] == 20


def test_baked_predictions_are_the_same(mine: Path, folder: Path) -> None:
    plain, baked = (run("edge", "predict", mine, folder / "query.npy", *words) for words in ([], ["--bake"]))
    assert [json.loads(line)["label"] for line in baked.stdout.splitlines()] == [
        json.loads(line)["label"] for line in plain.stdout.splitlines()
    ]


def test_nothing_is_printed_where_a_source_is_missing(mine: Path, folder: Path) -> None:
    answer = run("edge", "predict", mine, folder / "query.npy", folder / "nowhere.npy")
    assert answer.exit_code == 10
    assert answer.stdout == ""


def test_an_unknown_provider_is_named(mine: Path, folder: Path) -> None:
    answer = run("edge", "predict", mine, folder / "query.npy", "--provider", "MoonExecutionProvider")
    assert answer.exit_code == 10
    assert "MoonExecutionProvider" in answer.stderr
    assert "CPUExecutionProvider" in answer.stderr


def test_bench_reports_every_figure(bundle: Bundle, trusted_file: Path) -> None:
    answer = run("edge", "bench", bundle.path, "--trusted", trusted_file, "--repeats", "20", "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert [each["batch"] for each in found["predictions"]] == [1, 32]
    for each in found["predictions"]:
        assert each["microseconds"].keys() == {"bare", "baked", "fed", "bare_fed"}
        assert all(0 < times["p50"] <= times["p95"] <= times["p99"] for times in each["microseconds"].values())
        assert each["ratios"].keys() == {"baked", "fed", "bare_fed"}
    assert found["cold_start"]["seconds"] > 0
    assert 20 < found["cold_start"]["megabytes"] < 200
    assert found["threads"]["by_batch"]["1"].keys() >= {"1"}
    assert found["threads"]["recommended"] >= 1
    assert found["regenerate"]["p50"] > 0


def test_bench_warns_of_too_many_threads() -> None:
    from edge_runtime.bench.measure import Threads, advise

    slow = Threads({1: {1: 100.0, 2: 150.0}, 32: {1: 900.0, 2: 500.0}}, 1, 2)
    assert advise(slow) == ("2 threads are slower than one at batch 1: 150 against 100 us",)
    assert advise(Threads({1: {1: 100.0, 2: 60.0}}, 2, 2)) == ()


@pytest.mark.parametrize("scope", ["sample", None])
def test_bench_takes_any_bundle(bundle_paths: dict[Scope | None, Path], trusted_file: Path, scope: Scope | None) -> None:
    answer = run("edge", "bench", bundle_paths[scope], "--trusted", trusted_file, "--repeats", "10")
    assert answer.exit_code == 0, answer.output
    assert "recommended threads" in answer.stdout
