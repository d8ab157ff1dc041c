"""The suite passes a service that keeps the contract, finds each mistake that apps/memory.py can
make, and quotes the whole text of docs/clients.md: python3 clients/conformance/test_suite.py"""

import pathlib
import re
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "apps")]

import cases
import memory


def run(fault=None, *options):
    """The exit code and the output of the suite, on a service with this fault."""
    server = memory.serve(0, fault)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    try:
        result = subprocess.run(
            [sys.executable, HERE, f"http://127.0.0.1:{server.server_port}", *options],
            stdout=subprocess.PIPE, text=True)
    finally:
        server.shutdown()
        server.server_close()
    return result.returncode, result.stdout


class Suite(unittest.TestCase):
    def test_a_service_that_keeps_the_contract(self):
        code, output = run()
        self.assertEqual(code, 0, output)
        self.assertNotIn("BROKEN", output)
        number = sum(len(sentence.cases) for sentence in cases.SENTENCES)
        self.assertGreater(number, 200)
        self.assertIn(f" {number} cases, 0 failed", output)

    def test_each_mistake_is_found(self):
        for fault, sentence in memory.FAULTS.items():
            with self.subTest(fault):
                code, output = run(fault, "--only", sentence)
                self.assertEqual(code, 1, output)
                self.assertRegex(output, "(?m)^BROKEN    " + re.escape(sentence))
                self.assertRegex(output, "(?m)^    > POST /")

    def test_answers_that_are_no_objects(self):
        code, output = run("nonsense")
        self.assertEqual(code, 1)
        self.assertRegex(output.splitlines()[-1], "^[0-9]+ sentences hold, ")

    def test_each_sentence_that_is_judged_has_a_mistake(self):
        found = tuple(memory.FAULTS.values())
        for sentence in cases.SENTENCES:
            with self.subTest(sentence.text):
                self.assertEqual(bool(sentence.cases), sentence.unjudged is None)
                if sentence.cases and not sentence.text.startswith(
                        (*found, "Two requests are the same", "**Pass everything")):
                    self.fail("no mistake breaks it")

    def test_a_service_that_does_not_answer(self):
        for url in ("http://127.0.0.1:1", "http://127.0.0.1:port"):
            code = subprocess.run([sys.executable, HERE, url], stderr=subprocess.DEVNULL).returncode
            self.assertEqual(code, 2)

    def test_the_quotes(self):
        page = (HERE.parents[1] / "docs" / "clients.md").read_text()
        text = page.partition("## Text to publish")[2].partition("## How idem")[0]
        text = " ".join(re.sub("(?m)^>", "", text.partition("rules.\n")[2]).split())
        rest = " ".join(page.split())
        for sentence in cases.SENTENCES:
            self.assertIn(sentence.text, " ".join(re.sub("(?m)^>", "", page).split()))
            text = text.replace(sentence.text, "")
        headings = re.sub(r"\*\*[A-Z][A-Za-z -]+\.\*\*", "", text)
        self.assertEqual(headings.split(), [], "each sentence of the published text has its cases")

    def test_the_page(self):
        page = (HERE.parents[1] / "docs" / "conformance.md").read_text()
        table = page.partition("| group |")[2].partition("\n\n")[0]
        first = " ".join(line.split("|")[1] for line in table.splitlines()[2:])
        self.assertEqual(sorted(re.findall(r"`([\w-]+)`", first)), sorted(cases.GROUPS))
        found = {group for sentence in cases.SENTENCES for _, group, _ in sentence.cases if group}
        self.assertEqual(found | {"replay-header"}, set(cases.GROUPS))


if __name__ == "__main__":
    unittest.main()
