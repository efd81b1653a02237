"""Sentences of a page: lower-case words and punctuation, without code.

The rules are made for questions and answers in HTML. They know no language
and no abbreviations: 'e.g. this' is two sentences.
"""

import html
import re

# Ends a sentence: a block of code, which is left out, or the edge of a block
# of text. Not `[^>]*`: of 'n' open brackets every one would look for the end.
_EDGE = re.compile(
  r'<pre\b[^<>]*>.*?(?:</pre\s*>|\Z)'
  r'|</?(?:p|br|hr|li|ul|ol|dl|dt|dd|h[1-6]|div|blockquote|table|thead|tbody|tr'
  r'|td|th|details|summary)\b[^<>]*>',
  re.DOTALL | re.IGNORECASE,
)
_TAG = re.compile(r'</?[a-z!][^<>]*>', re.IGNORECASE)
# Not the punctuation behind a link.
_LINK = re.compile(
  r'(?:\b(?:https?|ftp)://|\bwww\.)\S*[^\s.,;:!?\'")\]}>]', re.IGNORECASE
)
_END = re.compile(r'(?<=[.!?…])\s+|(?<=[.!?…]["\')\]”])\s+')
_WORD = re.compile(r'\w')
_TOKEN = re.compile(r"<URL>|\w+(?:'\w+)*|[^\w\s]")


def of_html(page: str) -> list[str]:
  """The sentences of a page in HTML.

  Blocks of code (`<pre>`) are left out, the text of all other tags is kept. A
  sentence ends at '.', '!', '?' or '…' before a space, or at the edge of a
  block such as a paragraph. Tokens are links, all of them '<URL>'; words of
  letters, digits and inner apostrophes; and other characters, one by one. What
  has no word is no sentence.

  Args:
    page: HTML; of a page that is not well-formed the text is found as well as
      it can be.

  Returns:
    Sentences in order, tokens separated by one space.

  >>> of_html("<p>I like <b>hops</b>. Don't you?</p> <pre>x = 1</pre> Beer!")
  ['i like hops .', "don't you ?", 'beer !']
  """
  found = []
  for block in _EDGE.split(page):
    text = html.unescape(_TAG.sub('', block)).lower().replace('’', "'")
    for sentence in _END.split(_LINK.sub(' <URL> ', text)):
      if _WORD.search(sentence):
        found.append(' '.join(_TOKEN.findall(sentence)))
  return found
