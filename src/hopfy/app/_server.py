"""The web server: one page for each view, bound to this machine, with nothing from elsewhere."""

from __future__ import annotations

import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, ClassVar

import panel as pn
import param
from panel.custom import JSComponent

from hopfy.app._session import Session
from hopfy.app._view import View
from hopfy.app._views import views

__all__ = ["WarmUp", "free_port", "serve"]

ADDRESS = "127.0.0.1"
_BODY = """
body { margin: 0; background: #fff; }
@media (prefers-color-scheme: dark) { body { background: #17181c; } }
"""


def _asset(name: str) -> str:
    return resources.files("hopfy.app").joinpath(name).read_text("utf-8")


class Stage(JSComponent):  # type: ignore[misc]
    """The whole page; ``stage.js`` draws it and sends messages, `Session` answers them."""

    view = param.String()
    heading = param.String()
    lead = param.String()
    pages = param.List()
    controls_first = param.Boolean()
    shown = param.Dict({})
    note = param.String()

    _esm = _asset("stage.js")
    _stylesheets: ClassVar[list[str]] = [_asset("style.css")]

    def __init__(self, view: View[Any], pages: Sequence[tuple[str, str]]) -> None:
        super().__init__(
            view=view.name, heading=view.title, lead=view.lead, sizing_mode="stretch_width",
            pages=[list(page) for page in pages], controls_first=view.controls_first, margin=0,
        )  # fmt: skip
        self._session = Session(view)

    def _handle_msg(self, data: Any) -> None:
        if isinstance(data, dict):
            self.shown = self._session.receive(data)


class WarmUp:
    """Compiles what the views need, in a thread of its own, while the first page already opens."""

    def __init__(self, made: Sequence[View[Any]]) -> None:
        self._views, self.note = list(made), ""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin; pages show ``note`` until it is empty."""
        self.note = "Compiling the maps for this processor…"
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until everything is compiled."""
        self._thread.join(seconds)

    def _run(self) -> None:
        for place, view in enumerate(self._views, 1):
            self.note = (
                f"Compiling for this processor: {view.title.lower()} ({place} of "
                f"{len(self._views)}). Until it is done, the first answers of a view are slower."
            )
            try:
                view.show(view.defaults(), 900.0)
            except Exception as error:
                print(f"hopfy explore: {view.name} could not be prepared: {error}")
        self.note = ""


def _page(view: View[Any], pages: Sequence[tuple[str, str]], warm: WarmUp) -> Callable[[], Stage]:
    def page() -> Stage:
        stage = Stage(view, pages)
        stage.note = warm.note

        def tell() -> None:
            stage.note = warm.note
            if not warm.note:
                callback.stop()

        if warm.note:
            callback = pn.state.add_periodic_callback(tell, period=400)
        return stage

    return page


def free_port(preferred: int) -> int:
    """This port if it is free, else any; 0 asks for any."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            if os.name == "posix":  # a port that was just closed counts as free, as for the server
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(
        f"expected a free port of {ADDRESS}, but neither {preferred} nor any other can be used; close "
        "a program that listens, or check what the system allows."
    )


def serve(*, port: int = 5006, browser: bool = True, wait: bool = True) -> tuple[Any, str, WarmUp]:
    """Open the explorer; returns when the server is stopped, or at once if not to ``wait``."""
    pn.config.raw_css = [_BODY]
    chosen, made = free_port(port), views()
    pages = [(view.name, view.short) for view in made]
    warm = WarmUp(made)
    routes: dict[str, Any] = {view.name: _page(view, pages, warm) for view in made}
    origins = [f"{host}:{chosen}" for host in ("localhost", ADDRESS)]
    server = pn.serve(
        routes, port=chosen, address=ADDRESS, show=False, start=False, verbose=False,
        websocket_origin=origins, title={view.name: f"hopfy: {view.title}" for view in made},
        websocket_max_message_size=2**20, check_unused_sessions_milliseconds=10_000,
        unused_session_lifetime_milliseconds=60_000,
    )  # fmt: skip
    address = f"http://localhost:{chosen}/{made[0].name}"
    warm.start()
    server.start()
    if browser:
        server.io_loop.add_callback(webbrowser.open, address)
    if wait:
        print(f"hopfy explore: {address} (Ctrl+C stops it)", flush=True)
        server.io_loop.start()
    return server, address, warm
