def markdown(stored):
    return repr(stored)
