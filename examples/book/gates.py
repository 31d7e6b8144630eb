def report(results):
    return []
