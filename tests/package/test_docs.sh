#!/usr/bin/env bash
# Links of README.md and docs/ lead to files and headings that are there, and every path of this repository that
# they name in backticks exists.
#
# Usage: test_docs.sh SOURCE
set -u
cd "$1" || exit 1
failed=0

complain() {
    printf '%s\n' "$*"
    failed=1
}

# anchors FILE: what links to its headings end with.
anchors() {
    awk '/^```/ { code = !code }
        !code && /^#+ / {
            sub(/^#+ /, "")
            gsub(/\]\([^)]*\)/, "")
            text = tolower($0)
            gsub(/[^a-z0-9_ -]/, "", text)
            gsub(/ /, "-", text)
            print text
        }' "$1"
}

n_links=0
for document in README.md docs/*.md; do
    for link in $(grep -o '\]([^)]*)' "$document" | sed 's/^](//; s/)$//'); do
        case $link in http*) continue ;; esac
        n_links=$((n_links + 1))
        file=${link%%#*}
        target=$document
        [ -z "$file" ] || target=$(dirname "$document")/$file
        [ -e "$target" ] || complain "$document: $link: no such file"
        case $link in
        *#*)
            anchors "$target" | grep -qxF -- "${link#*#}" ||
                complain "$document: $link: no such heading"
            ;;
        esac
    done
    # shellcheck disable=SC2016
    for path in $(grep -oE '`(allocator|cmake|docs|examples|hardware|kernels|offload|tests|zero)/[A-Za-z0-9_./-]+`' \
        "$document" | tr -d '`'); do
        [ -e "$path" ] || complain "$document: $path is not there"
    done
done
[ $n_links -gt 50 ] || complain "$n_links links were found"
exit $failed
