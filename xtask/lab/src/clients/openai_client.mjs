// The official OpenAI client for Node against a running server: node openai_client.mjs BASE_URL

import OpenAI from "openai";
import { check, refused, same } from "./check.mjs";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;
const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "My dear sister" },
];
const asked = { model, messages, max_tokens: 16, temperature: 0, seed: 1 };

const answer = await client.chat.completions.create(asked);
const text = answer.choices[0].message.content;
check(text.length > 0 && answer.usage.completion_tokens <= 16, "a chat is answered");

let pieces = "";
let usage = null;
const chunks = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
for await (const chunk of chunks) {
  pieces += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
same(pieces, text, "the pieces of a stream are the whole");
same(usage.total_tokens, answer.usage.total_tokens, "with the same usage");

const stream = client.chat.completions.stream(asked);
let deltas = "";
stream.on("content", (delta) => { deltas += delta; });
const last = await stream.finalMessage();
same(deltas, text, "stream() tells its content");
same(last.content, text, "and its final message");
const ending = { ...asked, max_tokens: 200, stop: text.slice(-1) };
const ended = await client.chat.completions.create(ending);
const parsed = await client.chat.completions.parse(ending);
same(parsed.choices[0].message.content, ended.choices[0].message.content, "parse() reads what create() does");

for (const [name, message] of [["stream()", last], ["parse()", parsed.choices[0].message]]) {
  const next = { ...asked, messages: [...messages, message, { role: "user", content: "And then?" }] };
  const more = await client.chat.completions.create(next);
  check(more.usage.prompt_tokens > answer.usage.prompt_tokens, `the message of ${name} goes back as history`);
}

const completion = await client.completions.create({ model, prompt: "It is a truth", max_tokens: 12, temperature: 0 });
check(completion.choices[0].text.length > 0, "a text is continued");

const left = new AbortController();
const abandoned = await client.chat.completions.create({ ...asked, max_tokens: 200, stream: true }, { signal: left.signal });
for await (const _ of abandoned) {
  left.abort();
  break;
}
check(true, "a stream can be left in the middle");

await refused(OpenAI.NotFoundError, () => client.chat.completions.create({ ...asked, model: "gpt-5" }), "gpt-5");
await refused(OpenAI.BadRequestError, () => client.chat.completions.create({ ...asked, temperature: -1 }), "temperature");
await refused(OpenAI.BadRequestError, () => client.chat.completions.create({ ...asked, max_token: 3 }), "max_token");
console.log("all as the client expects");
