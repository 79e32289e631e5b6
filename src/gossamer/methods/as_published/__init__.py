"""Authors' codes, and other readings of papers that contradict themselves: runnable, side by side.

An entry such as `spafl-iclr-bytecode` is a released code with its ways; an entry NAME-variants has
every alternative reading of a paper as an option, and with its defaults gives the bits of NAME.
"""

from typing import Any

from gossamer.core import Method
from gossamer.methods.as_published import (
    feddrop,
    feddst,
    fedmef,
    fedpm,
    fedsparse,
    fedtiny,
    flash,
    personal,
    pffdst,
    priors,
    prunefl,
    spafl,
)

PUBLISHED: dict[str, Method[Any, Any, Any, Any, Any]] = {
    **spafl.ENTRIES,
    **flash.ENTRIES,
    **feddst.ENTRIES,
    **pffdst.ENTRIES,
    **fedsparse.ENTRIES,
    **feddrop.ENTRIES,
    **priors.ENTRIES,
    **prunefl.ENTRIES,
    **fedtiny.ENTRIES,
    **fedmef.ENTRIES,
    **personal.ENTRIES,
    **fedpm.ENTRIES,
}
