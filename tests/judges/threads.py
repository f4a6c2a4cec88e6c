"""Threads that run at the same time, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(*jobs: Callable[[], None]) -> None:
    """Run the jobs at the same time; the first error of any of them is raised here."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        try:
            ready.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
