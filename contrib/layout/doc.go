// Package layout holds no code. Its tests hold the shape of the whole project:
// which package may import which, what the small binaries must not link, and
// that every package says what it is for.
package layout
