"""Make case files for the tests, and an endpoint that counts their prompts."""

from collections import Counter
from contextlib import contextmanager

from tests.scripted_server import (
    ScriptedServer,
    after,
    answer,
    fail,
    models,
    version,
)

FILES = {
    "exam_data.yaml": (
        """
medical_exam:
  - case: single_choice:heart:en
    input:
      prompt: "Which one? (A) left (B) right"
      system_messages: ["Answer with the letter."]
    expected: {answer: "a"}
  - case: single_choice:heart:en
    input:
      prompt: "Which other? (A) up (B) down"
      system_messages: ["Answer with the letter."]
    expected: {answer: "b"}
  - case: short_words:heart:en
    input: {prompt: "Which side?", system_messages: []}
    expected: {answer: "Left side"}
  - case: regex:lungs:en
    input: {prompt: "What do lungs do?", system_messages: []}
    expected: {words_in_response: [breathe]}
  - case: regex:lungs:en
    input: {prompt: "What do lungs do?", system_messages: []}
    expected: {words_in_response: [[air, breath], oxygen]}
twice:
  - {case: same, input: {prompt: x}, expected: {answer: y}}
  - {case: same, input: {prompt: x}, expected: {answer: y}}
odd:
  - {case: a, input: {prompt: x}, expected: {entities: [Gene]}}
"""
    ),
    "rag_data.yaml": (
        """
rag_interpretation:
  - case: relevant
    input:
      prompt: "Is it?"
      system_messages: {short: ["Yes or no."], long: ["Answer.", "Yes or no."]}
    expected: {answer: "yes"}
  - case: implicit
    input: {prompt: "Is it?", system_messages: ["x"]}
    expected: {behaviour: decline}
"""
    ),
    "rag_more_data.yaml": (
        """
rag_interpretation:
  - {case: answers, input: {prompt: "Is it so?"}, expected: {answer: "no"}}
"""
    ),
    "schema_data.yaml": (
        """
kg_schemas:
  genes: {gene: {id: str}}
"""
    ),
    "query_data.yaml": (
        """
biocypher_query_generation:
  - case: simple
    input: {kg_schema: genes, prompt: "Which genes?"}
    expected: {entities: [Gene], parts_of_query: ["^MATCH", "RETURN"]}
api_calling:
  - {case: web, input: {prompt: {exact: "Which?"}}, expected: {parts_of_query: ["https"]}}
mcp_edam_qa:
  - {case: term, input: {prompt: "Which term?"}, expected: {answer: "http://o/data_1; http://o/format_2"}}
fragments:
  - {note: "no case"}
  - case: advice
    case_id: 1
    input:
      prompt: {background: {short: "I am 40.", long: "I am a man of 40."}, question: "Should I?"}
    expected: {answer: ["No"], summary: x, key_words: [y], individual: z}
"""
    ),
    "longevity_data.yaml": (
        """
longevity_advice:
  - general_system_messages:
      brief: ["Advise.", "Be brief."]
      full: ["Advise."]
  - general_system_messages_rag:
      brief: ["Use {contexts} and {{braces}}."]
  - case: advice
    case_id: "1"
    input:
      prompt:
        background: {short: "I am 40.\\n", long: "I am a man of 40."}
        question: "Should I?"
        distractor: {cat: "My cat sleeps.", no_cat: ""}
    expected: {answer: ["No"], summary: x, key_words: [y]}
  - case: rag:advice
    input:
      prompt:
        background: {short: "I am 40.", long: "I am a man of 40."}
        question: "Should I?"
    contexts: {one: {Title: "On cats", Price: "${5}"}}
    expected: {answer: ["No"], summary: x}
"""
    ),
    "extract_data.yaml": (
        """
text_extraction:
  - case: extraction
    input:
      query: {gene: "Which gene?", assay: "Which assay?"}
      caption: {one: TP53 by blot., two: BRCA1 by PCR.}
      format: {gene: one symbol, assay: a list}
      system_messages: {short: Be brief., long: Be thorough.}
    expected:
      answer:
        one: {gene: TP53, assay: blot}
        two: {gene: BRCA1, assay: PCR}
"""
    ),
}


def write_biochatter(folder):
    """Write files with each kind of module that BioChatter's benchmark has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)


class Counting:
    """Answer each chat prompt with its last word, and count requests by prompt.

    `refused` prompts get a 400; the endpoint reports `version`.
    """

    def __init__(self):
        self.asked = Counter()
        self.continued = 0
        self.refused = set()
        self.version = "1.0"
        self.url = ""
        self.pause_s = 0.0

    def taken(self):
        """Return the requests since the last call, by prompt."""
        asked, self.asked = self.asked, Counter()
        return asked

    def reply(self, request):
        if not request.chat:
            self.continued += request.max_tokens > 2  # shorter requests precede a run
            return answer(" 1")
        if request.prompt.startswith("Question"):
            self.asked[request.prompt] += 1
        said = answer(request.prompt.split()[-1].rstrip("?"))
        return after(self.pause_s, fail(400, "no") if request.prompt in self.refused else said)


@contextmanager
def counting():
    """Serve the endpoint on a free port, in a thread, until the end of the block."""
    endpoint = Counting()
    server = ScriptedServer(
        endpoint.reply,
        routes={"/v1/models": models("m"), "/version": lambda request: version(endpoint.version)},
    )
    with server.serve_in_thread() as endpoint.url:
        yield endpoint
