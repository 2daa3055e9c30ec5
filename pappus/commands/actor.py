"""`pappus actor`: steps envs for a remote run."""

from __future__ import annotations

from pappus.arguments import TRUST_HELP, Parser, whole
from pappus.errors import UserError, install_line


def main(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus actor", description="Step envs for a remote run that listens; Ctrl-C disconnects.")
    parser.add_argument("--connect", required=True, metavar="ADDRESS", help="HOST:PORT or unix:PATH of the run")
    parser.add_argument("--env", required=True, help="Gymnasium id, module:id or module:function")
    parser.add_argument("--envs", type=whole, default=16, help="envs to step (default: 16)")
    parser.add_argument("--env-groups", type=whole, default=2, help="groups of envs that step in turn (default: 2)")
    parser.add_argument("--seed", type=whole, help="seed of the envs (default: a new one each time)")
    parser.add_argument("--steps", type=whole, default=0, help="disconnect after this many steps (default: never)")
    parser.add_argument("--name", default="", help="name of this actor in the run (default: host and process id)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a server (default: 60)")
    parser.add_argument("--token-file", default="", help="file with the run's token")
    parser.add_argument("--authority", default="", help="TLS: CA of the server's certificate (PEM)")
    parser.add_argument("--certificate", default="", help="mutual TLS: certificate of this actor (PEM)")
    parser.add_argument("--key", default="", help="mutual TLS: its private key (PEM)")
    parser.add_argument("--config", help="YAML file with env_options, as in a run's config.yaml")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    try:
        from pappus.remote import RemoteActor
    except ModuleNotFoundError as error:
        text = f"pappus actor needs {error.name}, which is not installed; run {install_line('grpc')}"
        raise UserError(text) from None

    return RemoteActor.from_arguments(arguments).run()
