"""Which images the operator takes, and which ones it runs for others."""

from typing import Any

import pytest

from ingero_kit.settings import SettingsError, load
from ingero_operator.render.common import Platform
from ingero_operator.render.images import is_allowed, repository
from ingero_operator.render.install import everything
from ingero_operator.settings import OperatorConfig

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ingero/fleet", "docker.io/ingero/fleet"),
        ("ingero/fleet:1.2", "docker.io/ingero/fleet"),
        ("index.docker.io/ingero/fleet:1", "docker.io/ingero/fleet"),
        ("fleet", "docker.io/library/fleet"),
        (f"fleet:1@{DIGEST}", "docker.io/library/fleet"),
        ("registry.example.com:5000/team/fleet:1", "registry.example.com:5000/team/fleet"),
        ("registry:5000/fleet", "registry:5000/fleet"),
        (f"localhost/ingero/fleet@{DIGEST}", "localhost/ingero/fleet"),
    ],
)
def test_an_image_is_in_the_repository_that_a_runtime_would_ask(image: str, name: str) -> None:
    assert repository(image) == name


@pytest.mark.parametrize(
    ("image", "entries", "allowed"),
    [
        ("registry.example.com/team/fleet:9", ("registry.example.com/team/fleet",), True),
        ("registry.example.com/team/fleet-evil:9", ("registry.example.com/team/fleet",), False),
        ("registry.example.com/team/sub/fleet", ("registry.example.com/team/",), True),
        ("registry.example.com/teammate/fleet", ("registry.example.com/team/",), False),
        ("registry.example.com.evil.org/team/fleet", ("registry.example.com/",), False),
        ("team/fleet", ("docker.io/team/",), True),
        ("evil.org/docker.io/team/fleet", ("docker.io/team/",), False),
        ("anything/at:all", ("*",), True),
        ("anything/at:all", (), False),
    ],
)
def test_an_entry_allows_its_repository_and_nothing_that_resembles_it(
    image: str, entries: tuple[str, ...], allowed: bool
) -> None:
    assert is_allowed(image, entries) is allowed


def platform_with(**settings: Any) -> Platform:
    return Platform(config=OperatorConfig(**settings))


def test_a_resource_may_name_other_tags_of_the_operators_own_repositories_and_what_it_allows() -> None:
    platform = Platform(
        config=OperatorConfig(
            image_registry="registry.example.com/team", allowed_images=("mirror.example.com/ingero/",)
        )
    )

    assert not platform.refuses(None)
    assert not platform.refuses("registry.example.com/team/ingero/agent:nightly")
    assert not platform.refuses(f"mirror.example.com/ingero/agent@{DIGEST}")
    assert platform.refuses("registry.example.com/team/other:1")
    assert platform.refuses("ingero/agent:0.1.0")


def test_a_digest_pins_the_operators_own_version_and_no_other() -> None:
    platform = Platform(
        config=OperatorConfig(version="1.2.3", image_registry="r.example.com", image_digests={"agent": DIGEST})
    )

    assert platform.image_of("agent", None, None) == f"r.example.com/ingero/agent:1.2.3@{DIGEST}"
    assert platform.image_of("agent", "2.0.0", None) == "r.example.com/ingero/agent:2.0.0"
    assert platform.image_of("sink", None, None) == "r.example.com/ingero/sink:1.2.3"


def test_what_nobody_configured_is_taken_from_no_registry_of_the_internet() -> None:
    (deployment,) = (item for item in everything("1.2.3") if item["kind"] == "Deployment")

    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "localhost/ingero/operator:1.2.3"
    assert platform_with(version="1.2.3").image_of("agent", None, None) == "localhost/ingero/agent:1.2.3"


def test_allowed_images_come_from_flags_and_variables() -> None:
    environment = {"X_IMAGE_REGISTRY": "r.example.com/team", "X_IMAGE_DIGESTS": f"fleet={DIGEST},agent={DIGEST}"}
    config = load(OperatorConfig, prefix="X_", environment=environment, flags={"allowed_images": "a.b/c, d.e/f/"})

    assert config.allowed_images == ("a.b/c", "d.e/f/")
    assert config.image_digests == {"fleet": DIGEST, "agent": DIGEST}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"image_registry": ""}, "ingero/fleet:1 names no registry"),
        ({"image_registry": "team"}, "team/ingero/fleet:1 names no registry"),
        ({"image_digests": "fleet=1234"}, "fleet=1234"),
        ({"image_digests": f"flet={DIGEST}"}, "one of fleet, agent, sink, echo"),
    ],
)
def test_images_that_could_come_from_anywhere_are_refused_at_the_start(flags: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(OperatorConfig, flags=flags)


def test_a_full_name_in_the_template_needs_no_registry() -> None:
    config = load(OperatorConfig, flags={"image": "r.example.com/x-{component}:{version}"})
    platform = Platform(config=config.model_copy(update={"version": "1"}))

    assert platform.image_of("fleet", None, None) == "r.example.com/x-fleet:1"
