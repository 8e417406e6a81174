// Vercel's AI SDK against a running server: node ai_sdk_client.mjs BASE_URL

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";
import { check, refused, same } from "./check.mjs";

const provider = createOpenAICompatible({ name: "here", baseURL: process.argv[2], includeUsage: true });
const listed = await (await fetch(`${process.argv[2]}/models`)).json();
const model = provider(listed.data[0].id);
const asked = {
  model,
  system: "Be brief.",
  messages: [{ role: "user", content: "My dear sister" }],
  maxOutputTokens: 16,
  temperature: 0,
  maxRetries: 0,
};

const answer = await generateText(asked);
check(answer.text.length > 0 && ["stop", "length"].includes(answer.finishReason), "a chat is answered");
check(answer.usage.outputTokens <= 16 && answer.usage.inputTokens > 0, "with usage");

const stream = streamText(asked);
let pieces = "";
for await (const piece of stream.textStream) {
  pieces += piece;
}
same(pieces, answer.text, "the pieces of a stream are the whole");
same((await stream.usage).totalTokens, answer.usage.totalTokens, "with the same usage");

const history = [...asked.messages, ...answer.response.messages, { role: "user", content: "And then?" }];
const more = await generateText({ ...asked, messages: history });
check(more.usage.inputTokens > answer.usage.inputTokens, "its messages go back as history");

const left = new AbortController();
for await (const _ of streamText({ ...asked, maxOutputTokens: 200, abortSignal: left.signal }).textStream) {
  left.abort();
  break;
}
check(true, "a stream can be left in the middle");

await refused(APICallError, () => generateText({ ...asked, model: provider("gpt-5") }), "gpt-5");
await refused(APICallError, () => generateText({ ...asked, temperature: -1 }), "temperature");
console.log("all as the client expects");
