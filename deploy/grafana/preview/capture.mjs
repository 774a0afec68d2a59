// Draws dashboards in headless Chromium and saves them as pictures.
//
// usage: node capture.mjs PROMETHEUS START END OUTPUT DASHBOARD.json...
//
// PROMETHEUS is the address of a server, START and END are Unix seconds. Writes, for each dashboard,
// OUTPUT/NAME.png and OUTPUT/NAME-top.png, the part above the second row's title. OUTPUT/panels.json
// has the panels of each dashboard with title, type, hasData and the error of their queries. Exits
// with status 1 if a dashboard cannot be drawn.

import { createServer } from 'node:http';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const here = dirname(fileURLToPath(import.meta.url));
const [prometheus, start, end, output, ...dashboards] = process.argv.slice(2);
if (dashboards.length === 0) {
  console.error('usage: node capture.mjs PROMETHEUS START END OUTPUT DASHBOARD.json...');
  process.exit(2);
}

const files = {
  '/': ['index.html', 'text/html'],
  '/main.js': ['dist/main.js', 'text/javascript'],
  '/main.css': ['dist/main.css', 'text/css'],
};

let dashboard;
const server = createServer(async (request, reply) => {
  try {
    const { pathname, search } = new URL(request.url, 'http://localhost');
    if (pathname.startsWith('/api/')) {
      const answer = await fetch(prometheus + pathname + search);
      reply.writeHead(answer.status, { 'content-type': 'application/json' });
      reply.end(await answer.text());
    } else if (pathname === '/dashboard.json') {
      reply.end(await readFile(dashboard));
    } else if (files[pathname]) {
      const [file, type] = files[pathname];
      reply.writeHead(200, { 'content-type': type });
      reply.end(await readFile(join(here, file)));
    } else {
      reply.writeHead(404).end();
    }
  } catch (error) {
    reply.writeHead(502, { 'content-type': 'application/json' });
    reply.end(JSON.stringify({ status: 'error', error: error.message }));
  }
});
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const address = `http://127.0.0.1:${server.address().port}/?start=${start}&end=${end}`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
const panels = {};
try {
  await mkdir(output, { recursive: true });
  for (dashboard of dashboards) {
    const name = basename(dashboard, '.json');
    const page = await browser.newPage({ viewport: { width: 1600, height: 1000 } });
    const problems = [];
    page.on('pageerror', (error) => problems.push(error.stack ?? error.message));
    await page.goto(address);
    await page.waitForFunction(() => window.panels || window.failure, null, { timeout: 60_000 });
    const failure = (await page.evaluate(() => window.failure)) ?? problems[0];
    if (failure) {
      throw new Error(`${name}: ${failure}`);
    }
    await page.screenshot({ path: join(output, `${name}.png`), fullPage: true });
    const { y: height } = await page.locator('.row').nth(1).boundingBox();
    const clip = { x: 0, y: 0, width: 1600, height };
    await page.screenshot({ path: join(output, `${name}-top.png`), fullPage: true, clip });
    panels[name] = await page.evaluate(() => window.panels);
    await page.close();
  }
  await writeFile(join(output, 'panels.json'), JSON.stringify(panels, null, 1));
} finally {
  await browser.close();
  server.close();
}
