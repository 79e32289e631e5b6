"""What `--dp` accepts, and what it says about the rest."""

from __future__ import annotations

import pytest

from gossamer.trust.spec import Spec


def test_the_example_of_the_help_is_read() -> None:
    assert Spec.parse("clip=1.0,noise=0.8,delta=1e-5") == Spec(
        1.0, 0.8, None, 1e-5, None, "fixed", False
    )


def test_local_noise_adaptive_clips_and_sampling_are_read() -> None:
    assert Spec.parse("local:clip=2,noise=4").local
    assert Spec.parse("clip=adaptive:0.7:3,epsilon=8").quantile == 0.7
    assert Spec.parse("clip=adaptive:0.7:3,epsilon=8").clip == 3
    assert Spec.parse("clip=adaptive,noise=1").quantile == 0.5
    assert Spec.parse("clip=1,noise=1,sampling=poisson").sampling == "poisson"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noise=1", "needs clip"),
        ("clip=1", "noise or epsilon, one of the two"),
        ("clip=1,noise=1,epsilon=2", "one of the two"),
        ("clip=1,noise=1,noise=2", "each of .* once"),
        ("clip=1,nois=1", "cannot read 'nois=1'"),
        ("clip=0,noise=1", "clip must be above 0"),
        ("clip=nan,noise=1", "clip must be above 0, not nan"),
        ("clip=1,noise=-1", "noise must be 0 or more"),
        ("clip=1,noise=x", "noise is a number, not 'x'"),
        ("clip=1,noise=1,delta=1", "delta must be between 0 and 1"),
        ("clip=1,epsilon=0", "epsilon must be above 0"),
        ("clip=adaptive:1.5,noise=1", "quantile of clip=adaptive must be between 0 and 1"),
        ("clip=adaptively,noise=1", "adaptive:QUANTILE"),
        ("clip=1,noise=1,sampling=often", "fixed or poisson, not 'often'"),
        ("local:clip=adaptive,noise=1", "use a fixed clip"),
        ("local:clip=1,noise=1,sampling=poisson", "sampling hides nobody"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"`dp=`.*{message}"):
        Spec.parse(text)
