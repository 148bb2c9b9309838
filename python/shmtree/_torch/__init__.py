"""The package's knowledge of torch. Importing it does not import torch, and registers the functions for the core.

No function imports torch only to find out that a value is not a tensor: if torch is not imported, it cannot be one.
"""

from .._codec import core_functions as _core_functions
from .._codec import tensors as _hook
from . import library

_hook.library = library
_core_functions.hand_over(library)
