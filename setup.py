"""What pyproject.toml cannot say: the part in C, which a machine without a compiler goes without."""

from setuptools import Extension, setup

RING = ["traces/module.h", "traces/ring.h"]
SCREEN = [f"inspector/screen/{name}.h" for name in ("state", "details", "lost", "rules")]
MODULES = {
    "kvscope.traces._speed": ("traces/speed.c", RING),
    "kvscope.engine._lanes": ("engine/lanes.c", [*RING, "engine/blake2.h"]),
    "kvscope.inspector._screen": ("inspector/screen/live.c", SCREEN),
}

setup(
    ext_modules=[
        Extension(name, [source], depends=headers, include_dirs=["traces"], optional=True)
        for name, (source, headers) in MODULES.items()
    ]
)
