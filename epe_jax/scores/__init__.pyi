from . import formats as formats
