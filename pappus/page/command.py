"""`pappus page`: the page of a run that is over or under way, or of all runs below a folder.

    pappus page runs/ppo-CartPole-v1-1-…            serve it on a free port of this machine, until Ctrl-C
    pappus page runs                                all runs, to compare them
    pappus page runs --out runs.html                write a file that anybody can open

It only reads: nothing of a run directory is run or imported, whoever made it.
"""

from __future__ import annotations

from pathlib import Path

from pappus.arguments import Parser, whole
from pappus.config import PageConfig
from pappus.errors import UserError
from pappus.page.answers import Shown
from pappus.page.folder import check_folder
from pappus.page.server import PageServer
from pappus.page.serving import shown, write_page
from pappus.transports.addresses import check_page


def main(words: list[str]) -> int:
    """Serve or write a page; the exit code."""
    parser = Parser(prog="pappus page", description="Show a run, or all runs of a folder, in a browser.")
    parser.add_argument("folder", help="run directory, or a folder of runs")
    parser.add_argument("--out", metavar="FILE", help="write the page into a file instead of serving it")
    parser.add_argument("--port", type=whole, default=0, help="port of this machine (default: a free one)")
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help="serve others, too; needs --token-file")
    parser.add_argument("--token-file", default="", help="file with the secret that a browser must give once")
    parser.add_argument("--certificate", default="", help="TLS: certificate chain of the server (PEM)")
    parser.add_argument("--key", default="", help="TLS: its private key (PEM)")
    arguments = parser.parse_args(words)
    if not 0 <= arguments.port < 65536:
        raise UserError(f"--port {arguments.port} must lie between 0 and 65535; 0 takes a free one")
    if arguments.port and arguments.listen:
        raise UserError(f"--listen {arguments.listen} has a port of its own; leave --port out")
    directory = Path(arguments.folder)
    config = PageConfig(arguments.listen, arguments.token_file, arguments.certificate, arguments.key)
    check_page(config, "--")
    check_folder(directory)
    if arguments.out is not None:
        return _write(directory, arguments.out)
    return _serve(shown(directory), config, arguments.port)


def _serve(shown: Shown, config: PageConfig, port: int) -> int:
    server = PageServer(shown, config, port)
    print(server.url, flush=True)
    server.start()
    try:
        server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()
    return 0


def _write(directory: Path, out: str) -> int:
    file = Path(out)
    if not file.name:
        raise UserError(f"--out {out!r} names no file; give one, such as runs.html")
    try:
        write_page(shown(directory), file)
    except OSError as error:
        raise UserError(f"--out {str(file)!r} cannot be written: {error.strerror}; give another file") from None
    print(file)
    return 0
