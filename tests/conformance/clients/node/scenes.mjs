// What every client is put through; the result of each scene is one line of JSON.

export const BASE_URL = process.argv[2];
export const MODEL = "claude-x";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};

export async function run(plain, stream, call) {
  const scenes = {
    miss: [await plain("plain")],
    hit: [await plain("plain")],
    stream: [await stream("stream"), await stream("stream")],
    call: [await call("call"), await call("call")],
  };
  for (const [scene, answers] of Object.entries(scenes)) {
    console.log(JSON.stringify({ scene, answers }));
  }
}
