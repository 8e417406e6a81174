// What the scripts of clients for Node say of what they see.

export function check(condition, what) {
  if (!condition) {
    console.log(`FAILED: ${what}`);
    process.exit(1);
  }
  console.log(`ok: ${what}`);
}

export function same(seen, expected, what) {
  check(seen === expected, seen === expected ? what : `${what}: ${JSON.stringify(seen)} and not ${JSON.stringify(expected)}`);
}

export async function refused(kind, call, says) {
  try {
    await call();
  } catch (error) {
    const told = error.message + (error.responseBody ?? "");
    check(error instanceof kind && told.includes(says), `${kind.name}, naming ${says}`);
    return;
  }
  check(false, `${kind.name}, naming ${says}: nothing was refused`);
}
