"""Compiles the kernels of `gossamer.arithmetic`: one library for each kind of processor.

The coder of `gossamer.wire.numbers` is one more, the same for all of them.

It also makes the project's page of README.md, whose links lead into the repository there. All else
about the package is in pyproject.toml. Without a C++ compiler the package is installed
without kernels; it then computes with torch alone, and says so. `CXX` names another compiler.
"""

import os
import platform
import re
import shlex
import shutil
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError
from setuptools.modified import newer_group

PACKAGE = "gossamer.arithmetic"
FOLDER = Path("src", *PACKAGE.split("."))
SOURCE = FOLDER / "native" / "gossamer.cpp"
CODER = "gossamer.wire.numbers.rans"
OPTIMISE = ["-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno"]
FLAGS = [*OPTIMISE, "-Wall", "-Wextra", "-Wno-psabi", "-shared", "-fPIC", "-s"]
BUILDS = {"plain": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    BUILDS |= {
        "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
        "avx2": ["-march=x86-64-v3"],
    }


class BuildKernels(build_ext):
    """Shared libraries with a C interface, which know nothing of Python."""

    def initialize_options(self):
        super().initialize_options()
        self.parallel = True

    def get_ext_filename(self, fullname):
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext):
        made = Path(self.get_ext_fullpath(ext.name))
        made.parent.mkdir(parents=True, exist_ok=True)
        kept = Path("src", *ext.name.split(".")).with_suffix(".so")  # by an earlier editable one
        if self.editable_mode and not newer_group([*ext.sources, *ext.depends], str(kept)):
            self.copy_file(str(kept), str(made))
        else:
            # Old kernels with new sources would be worse than none, should the compiler fail.
            for old in (made, kept) if self.editable_mode else (made,):
                old.unlink(missing_ok=True)
            self.spawn([*compiler(), *ext.extra_compile_args, *ext.sources, "-o", str(made)])


class PlatformWheel(bdist_wheel):
    """Any version of Python can load the libraries, on this platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def compiler() -> list[str]:
    """The command of the C++ compiler."""
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise ExecError("no C++ compiler found; gossamer is installed without its kernels")


def readme() -> str:
    """README.md for readers who are not in the repository: relative links become absolute."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = project["urls"]["Repository"]
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\])\((?!\w+:)([^)]+)\)", rf"\1({home}/raw/main/\2)", text)
    return re.sub(r"(\[[^]]*\])\((?![\w]+:|#)([^)]+)\)", rf"\1({home}/blob/main/\2)", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            f"{PACKAGE}.kernels_{build}",
            [str(SOURCE)],
            depends=["setup.py", *sorted(map(str, SOURCE.parent.glob("*.h")))],
            extra_compile_args=[*FLAGS, *flags],
            optional=True,
        )
        for build, flags in BUILDS.items()
    ]
    + [
        Extension(
            CODER,
            [str(Path("src", *CODER.split(".")[:-1], "native", "rans.cpp"))],
            depends=["setup.py"],
            extra_compile_args=FLAGS,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
