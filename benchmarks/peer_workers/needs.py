"""What an installed package needs, one requirement a line, but for what is left out here."""

import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}

for line in requires(sys.argv[1]) or ():
    need = Requirement(line)
    wanted = need.marker is None or need.marker.evaluate({"extra": ""})
    if wanted and need.name.lower() not in LEFT_OUT:
        extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
        print(f"{need.name}{extras}{need.specifier}")
