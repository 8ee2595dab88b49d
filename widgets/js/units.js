// Amounts in words, and whether there is a lab behind a view.
export const mib = bytes => bytes < 2 ** 20 ? `${+(bytes / 1024).toFixed(1)} KiB` : bytes < 8 * 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
// Logs that are over and files have none.
export const labOpen = ({ command, lab: { state = "closed" } }) => !!command && !/^(closed|gone)$/.test(state);
