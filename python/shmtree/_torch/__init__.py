"""What the package knows of torch. Importing this does not import torch, and fills in what the core asks of it.

Nothing here imports torch to find out that a value is no tensor: then the program has not imported it either.
"""

from .._codec import core_functions as _core_functions
from .._codec import tensors as _hook
from . import library

_hook.library = library
_core_functions.hand_over(library)
