"""packaging/compose.yaml and kubernetes.yaml: parsed, compared with the image, and run.

Here the commands of the services run as processes, on directories of the test;
packaging/try-container runs them in containers.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fastjournal.client import SyncClient
from fastjournald.config.load import load_config
from fastjournald.config.options import Config
from fastjournald.main import new_command
from fastjournald.server import STOP_SECONDS_MAX
from fj_cli.cli import cli as fj_cli
from fj_forwarder.main import command as fj_forwarder
from tests.integration.programs import Program, installed
from tests.integration.worker_process import wait_until
from tests.system.staging import ROOT

PACKAGING = ROOT / "packaging"
CONTAINERFILE = (PACKAGING / "Containerfile").read_text(encoding="utf-8")
STAGE = CONTAINERFILE.rpartition("\nFROM ")[2]
IMAGE = "fastjournal:" + tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

ENTRYPOINT: list[str] = json.loads(re.findall(r"^ENTRYPOINT (.*)$", STAGE, re.MULTILINE)[0])
[VOLUME] = re.findall(r"^VOLUME (\S+)$", STAGE, re.MULTILINE)
[USER] = re.findall(r"^USER (\d+):\d+$", STAGE, re.MULTILINE)
[EXPOSED] = re.findall(r"^EXPOSE (.*)$", STAGE, re.MULTILINE)
MADE = set(
    re.findall(r"/var/\S+|/run/\S+", "".join(re.findall(r"install .*?\n(?=\w)", STAGE, re.S)))
)
"""Directories that the image has, with its user as their owner."""

COMPOSE: dict[str, Any] = yaml.safe_load((PACKAGING / "compose.yaml").read_text(encoding="utf-8"))
SERVICE, STATEFUL_SET = yaml.safe_load_all(
    (PACKAGING / "kubernetes.yaml").read_text(encoding="utf-8")
)
POD = STATEFUL_SET["spec"]["template"]["spec"]


def config_of(arguments: list[str]) -> Config:
    """Return the options of a daemon with these arguments behind those of the image."""
    program, *words = ENTRYPOINT + arguments
    assert program == "fastjournald"
    given = new_command().make_context(program, words).params
    flags = {name: value for name, value in given.items() if value not in (None, (), False)}
    return load_config(None, flags | {"listen": list(given["listen"])})


def check_words(words: list[str]) -> None:
    """Check that a program takes these arguments.

    Raises:
        click.UsageError: It does not.
    """
    program, *rest = words
    group: click.Command = {"fj-cli": fj_cli, "fj-forwarder": fj_forwarder}[program]
    # with its settings: click keeps the help option of the first context, also for other tests
    context = click.Context(group, **group.context_settings)
    if isinstance(group, click.Group):
        _, command, rest = group.resolve_command(context, rest)
        assert command is not None
        group = command
    group.make_context(program, rest, parent=context)


def words_of(service: dict[str, Any]) -> list[str]:
    """Return the command line of a service; compose writes a dollar twice."""
    words = [*service.get("entrypoint", ENTRYPOINT), *service.get("command", [])]
    return [word.replace("$$", "$") for word in words]


def test_compose_uses_the_image_its_ports_and_its_directories() -> None:
    services = COMPOSE["services"]
    assert services.keys() == {"fastjournald", "worker", "forwarder"}
    assert {service["image"] for service in services.values()} == {IMAGE}
    mounted = {
        name: dict(volume.split(":") for volume in service["volumes"])
        for name, service in services.items()
    }
    assert {name for volumes in mounted.values() for name in volumes} == COMPOSE["volumes"].keys()
    for volumes in mounted.values():
        # a new volume gets the owner of the directory of the image
        assert set(volumes.values()) <= MADE
    assert mounted["fastjournald"]["log"] == VOLUME
    assert all(volumes["socket"] == "/run/fastjournal" for volumes in mounted.values())
    assert all(service["init"] for service in services.values())
    for port in services["fastjournald"]["ports"]:
        host, _, inside = port.rpartition(":")
        assert host.startswith("127.0.0.1:")
        assert inside in EXPOSED.split()


def test_compose_commands_are_taken_by_their_programs() -> None:
    services = COMPOSE["services"]
    config = config_of(services["fastjournald"]["command"])
    assert config.cmdlog_path.startswith(VOLUME)
    [listen] = config.listen
    published = {port.rpartition(":")[2] for port in services["fastjournald"]["ports"]}
    assert published == {config.http.rpartition(":")[2]}
    for name in ("worker", "forwarder"):
        check_words(words_of(services[name]))
        assert listen in (
            *(word.removeprefix("--server=") for word in words_of(services[name])),
            *services[name].get("environment", {}).values(),
        )
    kind, *health = services["fastjournald"]["healthcheck"]["test"]
    assert (kind, health[-1]) == ("CMD", listen)
    check_words(health)
    for bad in (["--no-such"], ["--http", "0.0.0.0:9924", "--listen", "0.0.0.0:9923"]):
        with pytest.raises(Exception, match=r"--no-such|--insecure"):
            config_of(bad)


def test_kubernetes_manifest_fits_the_image_and_the_options() -> None:
    assert (STATEFUL_SET["kind"], STATEFUL_SET["spec"]["replicas"]) == ("StatefulSet", 1)
    assert STATEFUL_SET["spec"]["serviceName"] == SERVICE["metadata"]["name"]
    labels = STATEFUL_SET["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == STATEFUL_SET["spec"]["selector"]["matchLabels"] == labels
    [daemon] = POD["containers"]
    config = config_of(daemon["args"])
    assert config.auth_tokens
    assert not config.insecure
    ports = {port["name"]: str(port["containerPort"]) for port in daemon["ports"]}
    assert set(ports.values()) == set(EXPOSED.split())
    listening = {address.rpartition(":")[2] for address in config.listen}
    assert ports["jobs"] in listening
    assert ports["http"] == config.http.rpartition(":")[2]
    for port in SERVICE["spec"]["ports"]:
        assert ports[port["targetPort"]] == str(port["port"])
    assert POD["terminationGracePeriodSeconds"] > STOP_SECONDS_MAX
    for name, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
        assert daemon[f"{name}Probe"]["httpGet"] == {"path": path, "port": "http"}
    for container in (*POD["initContainers"], daemon):
        assert container["image"] == IMAGE
    limit = int(daemon["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
    assert 2 * config.memory_limit <= limit


def test_kubernetes_pod_has_no_rights_and_mounts_what_it_writes() -> None:
    context = POD["securityContext"]
    numbers = {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")}
    assert numbers == {int(USER)}
    assert context["runAsNonRoot"] is True
    volumes = {volume["name"] for volume in POD["volumes"]}
    claims = {claim["metadata"]["name"] for claim in STATEFUL_SET["spec"]["volumeClaimTemplates"]}
    for container in (*POD["initContainers"], *POD["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes | claims
    [daemon] = POD["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in daemon["volumeMounts"]}
    config = config_of(daemon["args"])
    assert mounts[VOLUME] in claims
    for path in (config.cmdlog_path, config.auth_tokens, *config.listen):
        if not path.startswith("0.0.0.0:"):
            above = Path(path.removeprefix("unix:")).parent
            assert any(str(place) in mounts for place in (above, *above.parents)), path
    [secret] = [volume["secret"] for volume in POD["volumes"] if "secret" in volume]
    # what only its user can read is a copy: a mounted secret has a mode for the group
    assert secret["defaultMode"] == 0o440
    [tokens] = POD["initContainers"]
    assert tokens["command"][-1] == config.auth_tokens


def test_kubernetes_copy_of_the_tokens_is_what_a_daemon_takes(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "access").mkdir()
    mounted = tmp_path / "secret/tokens.toml"
    mounted.write_text(
        '[[token]]\nname = "all"\ntoken = "x-0123456789-0123456789"\nrights = ["read"]\n'
        'prefixes = [""]\n'
    )
    mounted.chmod(0o440)
    [tokens] = POD["initContainers"]
    [daemon] = POD["containers"]
    places = {"/secret": f"{tmp_path}/secret", "/access": f"{tmp_path}/access"}
    log = {VOLUME: f"{tmp_path}/log", "/run/fastjournal": str(tmp_path)}
    words = [*ENTRYPOINT, *daemon["args"], "--check-config"]
    refused = run_placed(words, places | log)
    assert refused.returncode == 64, refused
    subprocess.run(placed(tokens["command"], places), check=True)
    assert run_placed(words, places | log).returncode == 0


def placed(words: list[str], places: dict[str, str]) -> list[str]:
    """Return words with directories of the container replaced."""
    pattern = re.compile("|".join(map(re.escape, places)))
    return [pattern.sub(lambda match: places[match[0]], word) for word in words]


def run_placed(words: list[str], places: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program, *rest = placed(words, places)
    return subprocess.run([installed(program), *rest], capture_output=True, text=True, check=False)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Directories of the test in the place of those of the image; a free port."""
    made = {path: tmp_path / str(at) for at, path in enumerate(sorted(MADE))}
    for directory in made.values():
        directory.mkdir()
    return {
        **{path: str(place) for path, place in made.items()},
        **dict.fromkeys(("0.0.0.0:9924", "0.0.0.0:9925"), "0.0.0.0:0"),
    }


@pytest.fixture
def services(places: dict[str, str], tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Run all services, as soon as the health check succeeds; their output, by name."""
    said = {name: tmp_path / f"{name}.out" for name in COMPOSE["services"]}
    with ExitStack() as stack:
        for name, service in COMPOSE["services"].items():
            program, *rest = placed(words_of(service), places)
            environment = service.get("environment", {})
            values = dict(zip(environment, placed([*environment.values()], places), strict=True))
            with said[name].open("wb") as output:
                process = Program(
                    [installed(program), *rest],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=os.environ | values,
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if "healthcheck" in service:
                check = placed(service["healthcheck"]["test"][1:], places)
                wait_until(lambda check=check: run_placed(check, {"\0": ""}).returncode == 0)
        yield said


def test_compose_services_work_together(services: dict[str, Path], places: dict[str, str]) -> None:
    socket = f"unix:{places['/run/fastjournal']}/socket"
    with closing(SyncClient(socket)) as client:
        client.enqueue("mails", "set by a client")
    put = ["fj-cli", "spool", "put", "/var/spool/fastjournal", "--domain", "mails", "from a spool"]
    assert run_placed(put, places).returncode == 0
    for text in ("set by a client", "from a spool"):
        wait_until(lambda text=text: f"working on: {text}" in services["worker"].read_text())
    said = services["fastjournald"].read_text()
    assert "event=risk" in said, "the page is open, and it says so"
    [port] = re.findall(r"http=0\.0\.0\.0:(\d+)", said)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
        assert answer.read() == b"ok\n"


def test_commands_in_the_comments_are_those_of_the_files() -> None:
    text = (PACKAGING / "compose.yaml").read_text(encoding="utf-8")
    for line in re.findall(r"^#   docker compose (.*?)(?:  +\(.*)?$", text, re.MULTILINE):
        words = shlex.split(line)
        assert (ROOT / words[words.index("--file") + 1]).is_file()
        if "exec" in words:
            service, *command = words[words.index("exec") + 1 :]
            assert service in COMPOSE["services"]
            check_words(command)
    names = re.findall(r"create secret generic (\S+)", (PACKAGING / "kubernetes.yaml").read_text())
    assert names == [v["secret"]["secretName"] for v in POD["volumes"] if "secret" in v]
