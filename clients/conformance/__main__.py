"""Judges by HTTP requests whether a service keeps the contract of docs/clients.md.

    python3 clients/conformance http://127.0.0.1:8080
"""

import argparse
import concurrent.futures
import http.client
import sys
import urllib.parse

import cases
from exchange import Answer, Broken, Session

CLIENTS = ["Bearer ann", "Bearer bob"]
LONGEST = 300  # of a body that is shown


def arguments():
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__.split("\n")[0])
    parser.add_argument("url", help="where the service has the operations of docs/conformance.md")
    parser.add_argument("--client", action="append", default=[], metavar="AUTHORIZATION",
                        help="the header Authorization of a client; give it twice")
    parser.add_argument("--skip", action="append", default=[], metavar="GROUP",
                        choices=cases.GROUPS, help="what the service lacks: %(choices)s")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="only the sentences and cases that contain this text")
    parser.add_argument("--types", default=cases.TYPES, metavar="PREFIX",
                        help="what the types of problems begin with (%(default)s)")
    parser.add_argument("--storm", type=int, default=cases.STORM, metavar="N",
                        help="how many keys the storm has (%(default)s)")
    parser.add_argument("--jobs", type=int, default=16, metavar="N",
                        help="how many cases run at once (%(default)s)")
    options = parser.parse_args()
    if len(options.client or CLIENTS) != 2:
        parser.error("two clients are needed")
    address = urllib.parse.urlsplit(options.url)
    if address.scheme not in ("http", "https") or not address.hostname:
        parser.error(f"{options.url} is no URL of HTTP")
    return options


def judged(case, options):
    """What is wrong, or None, and the exchanges that show it."""
    session = Session(options.url, options.client or CLIENTS)
    try:
        case(session)
        return None, []
    except Broken as broken:
        return str(broken), session.exchanges
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error!r}", session.exchanges


def shown(exchange):
    """A request and its answer, as lines."""
    request, headers, body, answer = exchange
    yield f"> {request}"
    for name, value in headers:
        yield f"> {name}: {short(value)}"
    yield f"> {short(body)}"
    if not isinstance(answer, Answer):
        yield f"< {answer}"
        return
    yield f"< {answer.status}"
    for name, value in answer.headers:
        yield f"< {name}: {short(value)}"
    yield f"< {short(answer.body)}"


def short(value):
    text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
    text = text.replace("\r", "\\r").replace("\n", "\\n")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def main():
    options = arguments()
    cases.TYPES, cases.STORM = options.types, options.storm
    cases.MARKED = "replay-header" not in options.skip
    try:
        Session(options.url, options.client or CLIENTS).get("/operations/none")
    except (OSError, http.client.HTTPException) as error:
        print(f"{options.url} does not answer: {error}", file=sys.stderr)
        return 2
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        planned = [(sentence, [(name, pool.submit(judged, case, options))
                               for name, group, case in sentence.cases
                               if group not in options.skip
                               and options.only in f"{sentence.text} {name}"])
                   for sentence in cases.SENTENCES]
        counts = dict.fromkeys(("cases", "failed", "held", "broken"), 0)
        for sentence, running in planned:
            results = [(name, *future.result()) for name, future in running]
            failed = [result for result in results if result[1] is not None]
            counts["cases"] += len(results)
            counts["failed"] += len(failed)
            if failed:
                counts["broken"] += 1
                print(f"BROKEN    {sentence.text} ({len(failed)} of {len(results)} cases)")
            elif results:
                counts["held"] += 1
                print(f"holds     {sentence.text} ({len(results)})")
            elif not options.only:
                print(f"unjudged  {sentence.text} ({sentence.unjudged or 'skipped'})")
            for name, wrong, exchanges in failed:
                print(f"  {name}: {wrong}")
                for exchange in exchanges:
                    print("".join(f"    {line}\n" for line in shown(exchange)))
    print("{held} sentences hold, {broken} do not: {cases} cases, {failed} failed"
          .format(**counts))
    return 1 if counts["failed"] or not counts["cases"] else 0


if __name__ == "__main__":
    sys.exit(main())
